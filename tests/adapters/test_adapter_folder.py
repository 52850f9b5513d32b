"""Adapters on disk: writing, reading, and errors for invalid files."""

import json
import os
import random
import re
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig, set_peft_model_state_dict
from safetensors.torch import load_file, save_file

from guardwrap import Adapter, Estimate, constraint
from guardwrap.adapters import (
    Card,
    Figure,
    Figures,
    attach,
    describe,
    fingerprint,
    read_adapter,
    save_adapter,
    tensors_of,
)
from guardwrap.adapters.card import CardPrompts, difference, readme
from guardwrap.constraints.regex_analysis import filtered_warnings
from guardwrap.errors import AdapterError, GuardwrapError
from guardwrap.testing import llama_world, table_world
from tests.fixtures_adapters import CONSTRAINT, card_of, guarded_of, trained, world_of

WEIGHTS, CONFIG, CARD = "adapter_model.safetensors", "adapter_config.json", "card.yaml"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = world_of()
    folder = tmp_path_factory.mktemp("adapters") / "small"
    curve = folder.with_name("curve")
    curve.write_text('{"samples": 10, "kl": 1.0}\n')
    save_adapter(folder, trained(world.model), card_of(world), curve)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "small"))


def plain(folder: Path) -> Path:
    """Remove the card, so that files can be changed."""
    (folder / CARD).unlink()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"lora_bias": True},
        {"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"k_proj": 1}, "lora_dropout": 0.1},
        {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
        {"alpha_pattern": {r".*\.q_proj": 3}},
        {"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 3}, "rank_pattern": {"^model.layers.1": 3}},
        {"alpha_pattern": {r"^model\.layers\.0\.self_attn\.q_proj$": 3, r"layers\.1\.mlp\.up_proj": 1}},
        {"target_modules": r".*\.(q|v)_proj", "exclude_modules": ["layers.0.self_attn.v_proj"]},
        {"layers_to_transform": [1], "target_modules": ["q_proj"], "layers_pattern": "layers"},
    ],
)
@pytest.mark.parametrize("by_peft", [False, True])
def test_what_is_saved_reads_back(config: dict[str, Any], by_peft: bool, tmp_path: Path) -> None:
    world = world_of()
    adapted = trained(world.model, **config)
    if by_peft:
        with filtered_warnings("ignore"):
            adapted.save_pretrained(tmp_path, save_embedding_layers=False)
    else:
        assert save_adapter(tmp_path, adapted) is None
        assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, WEIGHTS]
    files = read_adapter(tmp_path)
    assert files.card is None
    again = attach(world.model, files.config, files.tensors)
    ids = torch.tensor([[1, 2, 1, 0, 2]], device=world.model.device)
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, adapted(input_ids=ids).logits)
    (outcome,) = guarded_of(world, tmp_path).run(world.prompt, **world.settings)
    assert "KL(g‖g') is not known: it has no card" in outcome.report.drawn_from


def with_embeddings(world: Any, folder: Path, **config: Any) -> Any:
    """Save an adapter with peft alone, which adds a copy of the embeddings."""
    adapted = trained(world.model, **config)
    with filtered_warnings("ignore"):
        adapted.save_pretrained(folder, save_embedding_layers=True)
    return adapted


def copies(folder: Path) -> list[str]:
    return sorted(key for key in load_file(folder / WEIGHTS) if "lora_" not in key)


@pytest.mark.parametrize("targets", [["q_proj"], ["embed_tokens", "lm_head", "q_proj"]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_of_the_models_own_embeddings_are_accepted(
    targets: list[str], dtype: torch.dtype, tmp_path: Path
) -> None:
    world = world_of()
    adapted = with_embeddings(world, tmp_path, target_modules=targets)
    assert len(copies(tmp_path)) == 2
    world.model.to(dtype)  # like the model, the float32 file is loaded in bfloat16
    own = {name: tensor.clone() for name, tensor in world.model.state_dict().items()}
    files = read_adapter(tmp_path)
    again = attach(world.model, files.config, files.tensors)
    ids = torch.tensor([[1, 2, 1, 0, 2]], device=world.model.device)
    with torch.no_grad():
        drift = (again(input_ids=ids).logits.float() - adapted(input_ids=ids).logits).abs().max()
    assert drift == 0 if dtype == torch.float32 else drift < 0.05
    assert all(torch.equal(world.model.state_dict()[name], tensor) for name, tensor in own.items())
    assert guarded_of(world, tmp_path).run(world.prompt, **world.settings)[0].ok


@pytest.mark.parametrize("targets", [["q_proj"], ["embed_tokens", "lm_head", "q_proj"]])
@pytest.mark.parametrize("change", ["other numbers", "another size"])
def test_copies_that_differ_are_refused_with_the_setting_to_save_with(
    targets: list[str], change: str, tmp_path: Path
) -> None:
    world = world_of()
    with_embeddings(world, tmp_path, target_modules=targets)
    tensors = load_file(tmp_path / WEIGHTS)
    name = copies(tmp_path)[0]
    if change == "other numbers":
        tensors[name][0, 0] += 1e-3
    else:
        tensors[name] = torch.zeros(5, 16)
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(AdapterError, match=r"differs from this model's own.*save_embedding_layers=False") as caught:
        guarded_of(world, tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_the_card_reads_back(saved: Path) -> None:
    world = world_of()
    figures = Figures(
        acceptance_before=Figure.of(Estimate(0.01, 0.009, 0.012)),
        acceptance_after=Figure.of(Estimate(0.4, 0.3, 0.5)),
        kl_gold_proposal=Figure.of(Estimate(1.5, 1.2, float("inf"))),
        pareto_k=Figure.of(Estimate(0.9, 0.5, 1.3)),
    )
    card = card_of(
        world, figures=figures, hyperparameters={"lr": 1e-3, "steps": [1, 2]}, tokens=3, seconds=1.5,
        license="apache-2.0", notes=["One: with a colon.", "Two\nlines"],
    )  # fmt: skip
    path = saved.parent / "again.yaml"
    path.write_text(card.to_yaml())
    assert Card.read(path) == card
    assert "\n| Pareto k of the weights (a light tail: about 0.5 or less) | 0.9 [0.5, 1.3] |\n" in readme(card, "again")
    assert figures.kl_gold_proposal is not None
    assert figures.kl_gold_proposal.estimate == (1.5, 1.2, float("inf"))
    assert Figure.of(Estimate(float("inf"), 0, float("inf"))) is None
    assert card.constraint_digest == CONSTRAINT.digest
    assert card.base.fingerprint == fingerprint(world.model)
    assert set(card.versions) == {"guardwrap", "torch", "transformers", "peft"}


def test_a_constraint_from_python_has_a_digest_only() -> None:
    world = world_of()

    @constraint
    def odd(text: str) -> bool:
        return len(text) % 2 == 1

    card = describe(world.model, odd, [], name="x", settings={}, method="none", seed=0, samples=0)
    assert card.constraint is None
    assert card.constraint_digest == odd.digest
    assert card.constraint_description == odd.title


def test_many_prompts_have_one_digest() -> None:
    chat = [{"role": "user", "content": "Hi"}]
    few, many = CardPrompts.of(["a", chat]), CardPrompts.of(["a", chat, *("b" * i for i in range(9_000))])
    assert few.first == ["a", chat]
    assert (few.count, many.count) == (2, 9_002)
    assert len(many.first) == 3
    assert len(json.dumps(many.model_dump())) < 500 + 13 * 9_002  # twelve digits and a space
    assert CardPrompts.of(["a", "b"]).digest != CardPrompts.of(["b", "a"]).digest


def test_the_readme_is_a_model_card(saved: Path) -> None:
    text = (saved / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "base_model": "tiny/llama",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["guardwrap", "lora"],
    }
    assert "| KL(g‖g') | 0.61 [0.5, 0.72] nats |" in body
    assert "kind: keyword" in body
    assert "curve.jsonl" in body
    assert json.loads((saved / CONFIG).read_text())["base_model_name_or_path"] == "tiny/llama"


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    world = world_of()
    for name in ("one", "two"):
        save_adapter(tmp_path / name, trained(world.model, target_modules=["v_proj", "q_proj", "k_proj"]))
    for file in (CONFIG, WEIGHTS):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_card_that_would_not_read_back(tmp_path: Path) -> None:
    world = world_of()
    card = card_of(world, hyperparameters={"lr": float("nan")})
    with pytest.raises(AdapterError):
        save_adapter(tmp_path / "x", trained(world.model), card)


def test_an_old_card_does_not_stay_beside_new_weights(folder: Path) -> None:
    save_adapter(folder, trained(world_of().model, seed=3))
    assert read_adapter(folder).card is None


def changed(file: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Any]:
    def work(folder: Path) -> None:
        plain(folder)
        path = folder / file
        data = load_file(path) if file == WEIGHTS else json.loads(path.read_text())
        change(data)
        save_file(data, path) if file == WEIGHTS else path.write_text(json.dumps(data))

    return work


def flipped(folder: Path, file: str) -> None:
    raw = bytearray((folder / file).read_bytes())
    raw[-10] ^= 1
    (folder / file).write_bytes(raw)


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
EMBEDDING = "base_model.model.model.embed_tokens.weight"


def config(**fields: Any) -> Callable[[Path], Any]:
    return changed(CONFIG, lambda data: data.update(fields))


def tensors(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Any]:
    return changed(WEIGHTS, change)


def written(file: str, content: str | bytes) -> Callable[[Path], Any]:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: ((folder if file == CARD else plain(folder)) / file).write_bytes(raw)


def without_digests(folder: Path) -> None:
    (folder / CARD).write_text(Card.read(folder / CARD).model_copy(update={"files": {}}).to_yaml())


def piped(file: str) -> Callable[[Path], Any]:
    """Replace a file by a named pipe without a writer."""

    def work(folder: Path) -> None:
        if file != CARD:
            plain(folder)
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return work


def header(size: int) -> bytes:
    text = json.dumps({"__metadata__": {"x": " " * size}}).encode()
    return len(text).to_bytes(8, "little") + text


def figure(name: str, value: str) -> Callable[[Path], Any]:
    """Change a number in the card's only figure, 0.61 [0.5, 0.72]."""

    def work(folder: Path) -> None:
        text, count = re.subn(rf"(?<=    {name}: )[\d.]+", value, (folder / CARD).read_text())
        assert count == 1
        (folder / CARD).write_text(text)

    return work


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "there is no folder"),
    "empty": (lambda f: deque(map(os.remove, f.iterdir())), "has no adapter_config.json"),
    "no config": (lambda f: (f / CONFIG).unlink(), "has no adapter_config.json"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "has no adapter_model.safetensors"),
    "pickled": (pickled, "'adapter_model.bin', a pickle, which can run any code"),
    "weights changed": (lambda f: flipped(f, WEIGHTS), "adapter_model.safetensors' is not the file that the card"),
    "config changed": (lambda f: flipped(f, CONFIG), "adapter_config.json' is not the file that the card"),
    "card without digests": (without_digests, "is not the file that the card"),
    "card malformed": (written(CARD, "a: [1"), r"card.yaml:\d+: malformed YAML"),
    "card of another kind": (written(CARD, "guardwrap: 1\nconstraint: {}\n"), "card.yaml:1: guardwrap: unknown field"),
    "a figure outside its interval": (figure("value", "0.9"), r"card.yaml:\d+: .*0.9 is outside its interval"),
    "an interval turned round": (figure("low", "0.8"), r"card.yaml:\d+: .*outside its interval"),
    "a figure that is none": (figure("value", ".nan"), r"card.yaml:\d+: .*finite number"),
    "card runs code": (written(CARD, "!!python/object/apply:os.system [id]\n"), "card.yaml:1: a YAML"),
    "config no JSON": (written(CONFIG, "{"), "malformed JSON"),
    "config deep": (written(CONFIG, "[" * 100_000), "malformed JSON"),
    "config a list": (written(CONFIG, "[]"), "is not a JSON object"),
    "config huge": (written(CONFIG, " " * 1_000_001), "larger than"),
    "another kind": (config(peft_type="IA3"), "peft_type 'IA3' is not supported"),
    "another task": (config(task_type="SEQ_CLS"), "task_type 'SEQ_CLS' is not supported"),
    "pissa": (config(init_lora_weights="pissa_niter_4"), "changes the model's own weights"),
    "whole modules": (config(modules_to_save=["lm_head"]), "modules_to_save replaces parts"),
    "biases": (config(bias="all"), "bias replaces parts"),
    "imports": (config(megatron_config={"a": 1}), "'megatron_config' is not supported"),
    "more layers": (config(layer_replication=[[0, 2], [0, 9999]]), "'layer_replication' is not"),
    "unknown field": (config(from_the_future=3), "'from_the_future' is not supported"),
    "alpha": (config(lora_alpha=float("inf")), "lora_alpha has the value 'inf'"),
    "rank": (config(r=0), "r and lora_alpha are required"),
    "costly pattern": (
        config(alpha_pattern={"(a|aa)+b": 1}),
        "alpha_pattern has the value .*; name layers in it, e.g. 'layers.0.self_attn.q_proj', and save it again",
    ),
    "no safetensors": (written(WEIGHTS, b"\x80\x04K\x01."), "is corrupt"),
    "weights cut": (lambda f: written(WEIGHTS, (f / WEIGHTS).read_bytes()[:-100])(f), "is corrupt"),
    "absurd header": (written(WEIGHTS, b"\xff" * 8 + b"{}"), "is corrupt"),
    "a tensor too few": (tensors(lambda t: t.pop(FIRST.replace("_A", "_B"))), "lacks"),
    "no tensors": (tensors(lambda t: t.clear()), "has no tensors"),
    "the model's own": (tensors(lambda t: t.update({EMBEDDING: torch.zeros(3, 16)})), "differs from this model's own"),
    "another layer's own": (
        tensors(lambda t: t.update({EMBEDDING.replace("embed_tokens", "norm"): torch.ones(16)})),
        "not part of a LoRA adapter",
    ),
    "another shape": (tensors(lambda t: t.update({FIRST: torch.zeros(2, 17)})), r"the shape \[2, 17\], but this"),
    "another layer": (tensors(lambda t: t.update({FIRST.replace("0", "7"): t.pop(FIRST)})), "not part of a LoRA"),
    "not a number": (tensors(lambda t: t[FIRST].fill_(float("nan"))), "values above 1e.06 or NaN"),
    "absurd numbers": (tensors(lambda t: t[FIRST].fill_(1e30)), "values above 1e.06"),
    "absurd scale": (config(lora_alpha=10**40), "lora_alpha has the value '1000"),
    "card a pipe": (piped(CARD), "card.yaml': it is a named pipe; give a regular file"),
    "config a pipe": (piped(CONFIG), "has no adapter_config.json"),
    "weights a pipe": (piped(WEIGHTS), "has no adapter_model.safetensors"),
    "a long header": (written(WEIGHTS, header(5_000_000)), "has a header of more than 5000000 bytes"),
    "a rank of nothing": (
        tensors(lambda t: t.update({FIRST: torch.zeros(10**9, 0)})),
        "the shape .* model requires",
    ),
    "a rank of columns": (
        tensors(lambda t: t.update({FIRST: torch.zeros(10**6, 1)})),
        "the shape .* model requires",
    ),
    "many patterns": (config(alpha_pattern={f"a{i}": 1 for i in range(9_000)}), "alpha_pattern has more than 100"),
    "whole numbers": (tensors(lambda t: t.update({FIRST: torch.zeros(2, 16, dtype=torch.int8)})), "is of int8"),
}


@pytest.mark.usefixtures("watchdog")
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_by_name(what: str, folder: Path) -> None:
    work, says = REFUSED[what]
    world = world_of()
    before = {name: tensor.clone() for name, tensor in world.model.state_dict().items()}
    work(folder)
    for allow in (False, True):  # allow_mismatch does not affect these errors
        with pytest.raises(AdapterError, match=says) as caught:
            guarded_of(world, Adapter(folder, allow_mismatch=allow))
        assert len(str(caught.value).splitlines()) == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in world.model.state_dict().items())


def test_negative_control_peft_itself_writes_into_the_model() -> None:
    world = world_of()
    adapted = attach(world.model, LoraConfig(r=2, target_modules=["q_proj"]))
    set_peft_model_state_dict(adapted, {**tensors_of(adapted), EMBEDDING: torch.zeros(3, 16)})
    assert not world.model.model.embed_tokens.weight.any()


def test_what_a_config_names_is_not_imported(folder: Path) -> None:
    change = {
        "auto_mapping": {"base_model_class": "x", "parent_library": "antigravity"},
        "base_model_name_or_path": "../../etc",
        "megatron_core": "antigravity",
        "target_modules": "(a+)+(a+)+(a+)+(a+)+(a+)+$",
        "runtime_config": {"ephemeral_gpu_offload": True},
    }
    changed(CONFIG, lambda c: c.update(change))(folder)
    import sys

    assert guarded_of(world_of(), folder).adapter is not None
    assert "antigravity" not in sys.modules


def test_a_safetensors_file_goes_before_a_pickle(folder: Path) -> None:
    (folder / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    assert guarded_of(world_of(), folder).adapter is not None


@pytest.mark.slow
@pytest.mark.parametrize("file", [WEIGHTS, CONFIG, CARD])
def test_hostile_files_give_our_errors_only(file: str, folder: Path) -> None:
    world = world_of()
    if file != CARD:
        plain(folder)
    whole = (folder / file).read_bytes()
    chance = random.Random(0)
    values = ["null", "-1", "1e999", "[]", "{}", '"\\ud800"', '"(a|b)*"', "9" * 50, "&a *a", "!!set {a}", "\x00"]
    messages = []
    for _ in range(250):
        raw = bytearray(whole)
        end = min(len(raw), 3_000)  # for the weights: most of the header
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(min(end, len(raw)))
            match chance.randrange(4):
                case 0:
                    raw[place] = chance.randrange(256)
                case 1:
                    del raw[place : place + chance.randint(1, 40)]
                case 2:
                    raw[place:place] = bytes(chance.choice(values), "utf-8")
                case _:
                    colon = raw.find(b":", place)
                    stop = raw.find(b"\n", colon)
                    raw[colon + 1 : stop] = bytes(" " + chance.choice(values), "utf-8")
        (folder / file).write_bytes(raw)
        try:
            guarded = guarded_of(world, folder)
        except GuardwrapError as error:
            messages.append(str(error))
        else:
            assert guarded.run(world.prompt, budget=None, **world.settings)[0].report.usage.attempts
    assert len(messages) > 100
    assert all(len(message.splitlines()) == 1 and len(message) < 1_500 for message in messages)


def test_a_hub_id_downloads_a_few_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(repository: str, revision: str | None, allow_patterns: Any, local_files_only: bool) -> str:
        asked.append((repository, revision, allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    world = world_of()
    guarded = guarded_of(world, Adapter("someone/adapter", revision="main"))
    assert asked == [("someone/adapter", "main", [CONFIG, WEIGHTS, CARD, "config.json"])]
    assert guarded.adapter is not None
    assert guarded.adapter.name == "someone/adapter"

    def fails(*_: Any, **__: Any) -> str:
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fails)
    with pytest.raises(AdapterError, match=r"and the Hub download failed: no network$"):
        guarded_of(world, "someone/adapter")
    for wrong in ("no/such/folder", "../nothing", "a" * 5_000, "a\0b"):
        with pytest.raises(AdapterError):
            guarded_of(world, wrong)
    with pytest.raises(AdapterError, match="is a file"):
        guarded_of(world, folder / CONFIG)


def test_full_checkpoints_that_cannot_be_used(tmp_path: Path) -> None:
    world = world_of()
    llama_world(letters="abc").model.save_pretrained(tmp_path / "larger")
    with pytest.raises(AdapterError, match="another tokenizer"):
        guarded_of(world, tmp_path / "larger")
    world.model.save_pretrained(tmp_path / "renamed")
    table_world(letters="ba").tokenizer.save_pretrained(tmp_path / "renamed")
    with pytest.raises(AdapterError, match="another tokenizer"):
        guarded_of(world, tmp_path / "renamed")
    world.model.save_pretrained(tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    torch.save(world.model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(AdapterError, match=r"cannot load the checkpoint .*safetensors"):
        guarded_of(world, tmp_path / "pickled")


@pytest.mark.usefixtures("watchdog")
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_in_a_full_checkpoint(file: str, tmp_path: Path) -> None:
    world = world_of()
    world.model.save_pretrained(tmp_path / "full")
    (tmp_path / "full" / file).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "full" / file)
    with pytest.raises(AdapterError, match=rf"{file}' is a named pipe, not a file"):
        guarded_of(world, tmp_path / "full")


@pytest.mark.usefixtures("watchdog")
def test_a_pipe_in_the_way_of_what_is_written(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)
    save_adapter(folder, trained(world_of().model))
    assert (folder / WEIGHTS).is_file()


@pytest.mark.parametrize("change", [FIRST.replace("0", "7"), FIRST])
def test_layers_that_the_model_has_not_never_reach_peft(
    change: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """peft compares each layer with all others, which takes minutes for the number that a small file can name."""
    tensors(lambda t: t.update({change: torch.zeros(2, 17)}))(folder)
    monkeypatch.setattr("guardwrap.adapters.lora.get_peft_model", None)
    with pytest.raises(AdapterError, match=r"not part of a LoRA adapter|the shape"):
        guarded_of(world_of(), folder)


def test_an_adapter_of_one_rank_has_no_pattern_for_it(saved: Path) -> None:
    """peft tries every pattern on every layer, and compiles hundreds of them each time."""
    assert not read_adapter(saved).config.rank_pattern


def test_a_fingerprint_is_that_of_the_file(tmp_path: Path) -> None:
    for stored in (torch.float32, torch.bfloat16, torch.float16):
        world = world_of()
        world.model.to(stored).save_pretrained(tmp_path)
        loaded = {
            dtype: type(world.model).from_pretrained(tmp_path, dtype=dtype)
            for dtype in (torch.float32, torch.bfloat16, torch.float16)
        }
        for first, one in loaded.items():
            for second, two in loaded.items():
                # bfloat16 and float16 round a float32 file differently, so their digests differ.
                lost = stored == torch.float32 and {first, second} == {torch.bfloat16, torch.float16}
                assert (difference(one, fingerprint(two)) is None) != lost, (stored, first, second)


def test_a_fingerprint_tells_models_apart() -> None:
    world = world_of()
    own = fingerprint(world.model)
    world.model.config.use_cache = False
    world.model.config.pad_token_id = 1
    world.model.name_or_path = "elsewhere"
    assert difference(world.model, own) is None
    assert difference(world_of(seed=1).model, own) == "another weights"
    assert difference(llama_world(letters="abc").model, own) == "another configuration and other weights"
    with torch.no_grad():
        world.model.lm_head.weight.mul_(1 + 2**-7)
    assert difference(world.model, own) is not None
    # For quantized weights only configurations are compared.
    assert difference(world.model, own.model_copy(update={"weights": {}})) is None
