"""Old names of modules, classes and functions, which lead to the new ones with a ``DeprecationWarning``.

Kept for one version. To remove them, delete this file and the call of ``install`` in ``guardwrap/__init__.py``.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["MODULES", "NAMES", "install"]

ROOT = "guardwrap."

# What each module that is gone is called now, below ``guardwrap.``.
MODULES = {
    "adapters.folder": "adapters.adapter_folder",
    "asking": "session.base_session",
    "backends.drawing": "backends.token_sampling",
    "backends.endpoint.backend": "backends.endpoint.endpoint_backend",
    "backends.endpoint.faults": "backends.endpoint.request_faults",
    "backends.endpoint.law": "backends.endpoint.endpoint_law",
    "backends.endpoint.mask": "backends.endpoint.structured_outputs",
    "backends.endpoint.score": "backends.endpoint.endpoint_scores",
    "backends.endpoint.streams": "backends.endpoint.attempt_stream",
    "backends.endpoint.transfer": "backends.endpoint.transfer_limits",
    "backends.generate": "backends.transformers_loop",
    "backends.known": "backends.prefix_cache",
    "backends.law": "backends.generation_law",
    "backends.narrowing": "backends.dead_prefixes",
    "backends.refill.prefixes": "backends.refill.prompt_tree",
    "backends.refill.rows": "backends.refill.row_states",
    "backends.refill.selftest": "backends.refill.mode_selection",
    "backends.score": "backends.sequence_scores",
    "backends.sharing": "backends.shared_weights",
    "chances": "planning.probability",
    "cli.again": "cli.retry",
    "cli.ahead": "cli.out_of_order_cache",
    "cli.app": "cli.typer_app",
    "cli.catalogue": "cli.commands.catalogue_command",
    "cli.check": "cli.commands.check_command",
    "cli.cluster": "cli.ray_run",
    "cli.common": "cli.shared",
    "cli.demo": "cli.commands.demo_command",
    "cli.doctor": "cli.commands.doctor_command",
    "cli.evaluate": "cli.commands.evaluate_command",
    "cli.generate": "cli.commands.generate_command",
    "cli.init": "cli.commands.init_command",
    "cli.plan": "cli.commands.plan_command",
    "cli.proposing": "cli.proposal_options",
    "cli.report": "cli.commands.report_command",
    "cli.running": "cli.generate_run",
    "cli.serve": "cli.commands.serve_command",
    "cli.streams": "cli.signals",
    "cli.telling": "cli.progress_log",
    "cli.train": "cli.commands.train_command",
    "constraints.algebra": "constraints.combinators",
    "constraints.callables": "constraints.kinds.function",
    "constraints.characters": "constraints.utf8",
    "constraints.classifier": "constraints.kinds.classifier",
    "constraints.documents": "documents.validation",
    "constraints.drafts": "constraints.json.drafts",
    "constraints.ecma": "constraints.json.ecma_patterns",
    "constraints.ecma_sets": "constraints.json.ecma_character_sets",
    "constraints.editing": "documents.editor_schema",
    "constraints.formats": "constraints.json.formats",
    "constraints.json_frames": "constraints.json.frames",
    "constraints.json_plans": "constraints.json.applicators",
    "constraints.json_reading": "constraints.json.json_monitor",
    "constraints.json_scalars": "constraints.json.scalars",
    "constraints.json_schema": "constraints.json.json_schema",
    "constraints.json_subschemas": "constraints.json.subschemas",
    "constraints.json_text": "documents.lexical",
    "constraints.judge": "constraints.checking",
    "constraints.keywords": "constraints.kinds.keyword",
    "constraints.limits": "documents.time_limits",
    "constraints.named": "constraints.files.named",
    "constraints.parsing": "constraints.json.values",
    "constraints.patterns": "constraints.regex_analysis",
    "constraints.proposing": "constraints.files.proposal_fields",
    "constraints.reading": "constraints.prefix_reader",
    "constraints.recogniser": "constraints.grammar.llguidance_matcher",
    "constraints.references": "constraints.json.references",
    "constraints.registry": "constraints.files.kind_registry",
    "constraints.schema_files": "constraints.json.schema_files",
    "constraints.schema_keywords": "constraints.json.keywords",
    "constraints.schema_notes": "constraints.json.schema_notes",
    "constraints.schemas": "constraints.json.schema_validation",
    "constraints.spec": "constraints.files.constraint_file",
    "constraints.text": "constraints.kinds.text",
    "constraints.threads": "environment.threads",
    "constraints.typed": "constraints.json.python_types",
    "constraints.yaml_nodes": "documents.yaml_nodes",
    "content": "environment.package_data",
    "draws": "outcomes",
    "engine": "pipelines.embedded_model",
    "engine.local": "pipelines.embedded_model",
    "evaluation.claims": "evaluation.evaluation_claims",
    "evaluation.report": "evaluation.evaluation_report",
    "evaluation.run": "evaluation.evaluation_run",
    "evaluation.settings": "evaluation.evaluation_settings",
    "exhausted": "session.fallback",
    "finishing": "session.delivery",
    "host": "environment.process",
    "hub": "environment.hub",
    "inputs": "documents.inputs",
    "integrations.common": "integrations.guarded_call",
    "internals": "environment.library_internals",
    "job": "session.job",
    "lines": "prompt_files",
    "lines.own": "prompt_files.overrides",
    "lines.prompts": "prompt_files.prompts",
    "lines.records": "prompt_files.records",
    "metrics.qrs": "metrics.qrs_estimates",
    "piloting": "planning.pilot",
    "pipelike": "session.pipeline_api",
    "pipelines.compared": "pipelines.settings_difference",
    "pipelines.lengths": "pipelines.minimum_tokens",
    "pipelines.local": "pipelines.embedded_model",
    "pipelines.messages": "messages.parsed_message",
    "pipelines.positions": "pipelines.position_limit",
    "pipelines.prefix": "pipelines.early_abort",
    "pipelines.prompts": "pipelines.prompt_forms",
    "pipelines.proposed": "pipelines.proposal_draws",
    "pipelines.records": "pipelines.output_records",
    "pipelines.remote": "pipelines.endpoint_calls",
    "pipelines.tasks": "pipelines.task_calls",
    "pipelines.tensors": "pipelines.tensor_prompts",
    "private": "environment.transformers_internals",
    "progress": "environment.progress",
    "ray.folder": "ray.result_folder",
    "ray.job": "ray.ray_job",
    "ray.library": "ray.ray_library",
    "ray.rows": "ray.dataset_rows",
    "remote": "session.endpoint_session",
    "report.drawing": "report.figure_export",
    "report.reading": "report.result_files",
    "report.words": "report.plain_words",
    "samplers.base": "samplers.protocol",
    "samplers.registry": "samplers.sampler_registry",
    "scheduling.account": "scheduling.request_state",
    "scheduling.allowance": "scheduling.step_allowance",
    "scheduling.aside": "scheduling.checker_pool",
    "scheduling.judging": "scheduling.judge_attempts",
    "scheduling.skipping": "scheduling.skip_rounds",
    "scheduling.source": "scheduling.request_stream",
    "serve.app": "serve.routes",
    "serve.asking": "serve.request_policy",
    "serve.bodies": "serve.incoming_requests",
    "serve.checking": "serve.time_limited",
    "serve.figures": "serve.server_metrics",
    "serve.process": "serve.lifecycle",
    "serve.refusals": "serve.error_responses",
    "serve.request_body": "serve.incoming_requests",
    "serve.serving": "serve.request_handling",
    "serve.settings": "serve.server_settings",
    "serve.stopping": "constraints.stop_strings",
    "serve.structured": "serve.structured_output",
    "serve.wishes": "serve.parsed_request",
    "settings": "task_settings",
    "sources": "session.resolve",
    "training.claims": "training.training_claims",
    "training.drawing": "training.round_attempts",
    "training.plan": "training.rounds",
    "training.progress": "training.learning_curve",
    "training.report": "training.training_report",
    "training.settings": "training.training_settings",
    "training.state": "training.training_state",
    "ways": "planning.alternatives",
    "words": "formatting",
    "writing": "environment.atomic_files",
}

# What each class, function or constant is called now that has another name, or is not where its module went.
NAMES = {
    "adapters.card.Prompts": "adapters.card.CardPrompts",
    "adapters.loaded.in_words": "adapters.loaded.describe_adapter",
    "adapters.loaded.load": "adapters.loaded.load_adapter",
    "adapters.load": "adapters.loaded.load_adapter",
    "constraints.base.is_count": "errors.is_count",
    "constraints.base.is_number": "errors.is_number",
    "asking.Asking": "session.base_session.BaseSession",
    "backends.drawing.draw": "backends.token_sampling.draw_tokens",
    "backends.drawing.walk": "backends.token_sampling.walk_known",
    "backends.endpoint.answers.Allowance": "backends.endpoint.answers.AnswerLimit",
    "backends.endpoint.answers.printable": "backends.endpoint.answers.printable_line",
    "backends.endpoint.answers.text_of": "backends.endpoint.answers.text_piece",
    "backends.endpoint.faults.fault_of": "backends.endpoint.request_faults.request_fault",
    "backends.endpoint.law.Settings": "backends.endpoint.endpoint_law.EndpointSettings",
    "backends.endpoint.law.read_settings": "backends.endpoint.endpoint_law.read_endpoint_settings",
    "backends.endpoint.law.require_weighable": "backends.endpoint.endpoint_law.require_weighable_endpoint",
    "backends.endpoint.streams.Again": "backends.endpoint.attempt_stream.AttemptRestarted",
    "backends.endpoint.streams.drawn": "backends.endpoint.attempt_stream.stream_attempt",
    "backends.known.Place": "backends.prefix_cache.Node",
    "backends.known.Tree": "backends.prefix_cache.PrefixTree",
    "backends.law.ended_by": "backends.generation_law.ended_rows",
    "backends.narrowing.Narrowed": "backends.dead_prefixes.WithoutDeadPrefixes",
    "backends.narrowing.narrowed": "backends.dead_prefixes.without_dead_prefixes",
    "backends.refill.rows.anew": "backends.refill.row_states.in_one_pass",
    "backends.refill.rows.run": "backends.refill.row_states.run_model",
    "cli.again.Again": "cli.retry.RetryRun",
    "cli.catalogue.catalogue": "cli.commands.catalogue_command.show_catalogue",
    "cli.check.Judged": "cli.commands.check_command.CheckedText",
    "cli.check.judged": "cli.commands.check_command.check_texts",
    "cli.common.printable": "cli.shared.printable_text",
    "cli.evaluate.evaluate": "cli.commands.evaluate_command.run_evaluation",
    "cli.proposing.in_words": "cli.proposal_options.describe_proposal",
    "cli.results.Finished": "cli.results.WrittenLines",
    "cli.streams.complete": "cli.signals.open_closed_streams",
    "cli.streams.ended_by": "cli.signals.exit_of",
    "cli.streams.in_words": "cli.signals.describe_os_error",
    "cli.train.train": "cli.commands.train_command.run_training",
    "constraints.base.Monitor": "constraints.verdicts.Monitor",
    "constraints.base.Verdict": "constraints.verdicts.Verdict",
    "constraints.base.plain": "constraints.base.plain_field",
    "constraints.base.spelled": "constraints.base.to_spec",
    "constraints.ecma_sets.Refused": "constraints.json.ecma_character_sets.Untranslatable",
    "constraints.ecma_sets.plain": "constraints.json.ecma_character_sets.escape_character",
    "constraints.editing.describe": "documents.editor_schema.add_descriptions",
    "constraints.files.Own": "constraints.files.coerce.PerPromptOptions",
    "constraints.files.as_constraint_file": "constraints.files.coerce.as_constraint_file",
    "constraints.files.catalogue": "constraints.files.coerce.catalogue",
    "constraints.files.catalogue_names": "constraints.files.catalogue_files.catalogue_names",
    "constraints.files.catalogue_path": "constraints.files.catalogue_files.catalogue_path",
    "constraints.grammar.Grammar": "constraints.grammar.grammar.Grammar",
    "constraints.grammar.csv": "constraints.grammar.grammar.csv",
    "constraints.json_plans.Plan": "constraints.json.applicators.Applicators",
    "constraints.json_reading.Plans": "constraints.json.json_monitor.ApplicatorCache",
    "constraints.json_reading.Reading": "constraints.json.json_monitor.JSONMonitor",
    "constraints.json_scalars.Limits": "constraints.json.scalars.NumberRange",
    "constraints.json_text.load": "documents.lexical.load_json",
    "constraints.json_text.number": "documents.lexical.exact_number",
    "constraints.limits.ITEMS_OF_ANY": "documents.limits.ITEMS_OF_ANY",
    "constraints.limits.LOAD_SECONDS": "documents.limits.LOAD_SECONDS",
    "constraints.limits.MAX_BYTES": "documents.limits.MAX_BYTES",
    "constraints.limits.MAX_COMPARED": "documents.limits.MAX_COMPARED",
    "constraints.limits.MAX_DEPTH": "documents.limits.MAX_DEPTH",
    "constraints.limits.MAX_DIRECTIVES": "documents.limits.MAX_DIRECTIVES",
    "constraints.limits.MAX_FILES": "documents.limits.MAX_FILES",
    "constraints.limits.MAX_FIXED": "documents.limits.MAX_FIXED",
    "constraints.limits.MAX_ITEMS": "documents.limits.MAX_ITEMS",
    "constraints.limits.MAX_ITEMS_OF_A_FILE": "documents.limits.MAX_ITEMS_OF_A_FILE",
    "constraints.limits.MAX_NUMBER": "documents.limits.MAX_NUMBER",
    "constraints.limits.MAX_SETS": "documents.limits.MAX_SETS",
    "constraints.limits.MAX_VALUES": "documents.limits.MAX_VALUES",
    "constraints.limits.MAX_WORD_PAIRS": "documents.limits.MAX_WORD_PAIRS",
    "constraints.limits.apart": "documents.time_limits.call_apart",
    "constraints.limits.count_items": "documents.limits.count_items",
    "constraints.limits.loading": "documents.limits.loading",
    "constraints.limits.look": "documents.time_limits.check_deadline",
    "constraints.patterns.kinds": "constraints.regex_analysis.character_kinds",
    "constraints.proposing.misfit": "constraints.files.proposal_fields.adapter_misfit",
    "constraints.reading.Reader": "constraints.prefix_reader.PrefixReader",
    "constraints.reading.Reading": "constraints.prefix_reader.ReadPrefix",
    "constraints.recogniser.Recogniser": "constraints.grammar.llguidance_matcher.Matcher",
    "constraints.references.Place": "constraints.json.references.SchemaPlace",
    "constraints.registry.any_kind": "constraints.files.named.any_constraint",
    "constraints.typed.adapter_of": "constraints.json.python_types.type_adapter_of",
    "constraints.views.settled": "constraints.views.settled_parts",
    "constraints.yaml_nodes.Reader": "documents.yaml_nodes.NodeReader",
    "constraints.yaml_nodes.beside": "documents.yaml_nodes.path_beside",
    "draws.Budget": "budget.Budget",
    "draws.budget_or_none": "budget.budget_or_none",
    "errors.spelled": "errors.strict_arguments",
    "evaluation.claims.claims_of": "evaluation.evaluation_claims.claims_of_evaluation",
    "evaluation.recording.Source": "evaluation.recording.AttemptSource",
    "evaluation.report.charts_of": "evaluation.evaluation_report.evaluation_charts",
    "evaluation.settings.place_of": "evaluation.evaluation_settings.position_to_compare",
    "evaluation.settings.read_settings": "evaluation.evaluation_settings.read_evaluation_settings",
    "finishing.Finishing": "session.delivery.Delivery",
    "integrations.common.complete": "integrations.guarded_call.complete_outcome",
    "integrations.common.drawn": "integrations.guarded_call.run_prompts",
    "integrations.common.text_of": "integrations.guarded_call.content_of",
    "job.Asked": "session.job.RequestOptions",
    "lines.prompts.Source": "prompt_files.prompts.PromptSource",
    "lines.prompts.source_of": "prompt_files.prompts.prompt_source_of",
    "pipelike.Hand": "session.pipeline_api.StreamerAdapter",
    "pipelines.loading.as_pipeline": "pipelines.loading.pipeline_of",
    "pipelines.masking.DEAR": "constraints.base.EXPENSIVE",
    "pipelines.masking.Mask": "pipelines.masking.ConstraintMask",
    "pipelines.messages.fault_of": "messages.parsed_message.message_fault",
    "pipelines.messages.spelled": "messages.parsed_message.message_text",
    "pipelines.records.record": "pipelines.output_records.output_record",
    "planning.Forecast": "planning.forecast.Forecast",
    "planning.Plan": "planning.plan.Plan",
    "planning.planned": "planning.plan.planned",
    "planning.spent": "planning.plan.spent",
    "proposals.merged": "proposals.merge_proposals",
    "ray.job.run": "ray.ray_job.run_job",
    "ray.rows.Row": "ray.dataset_rows.PromptRow",
    "ray.rows.fingerprint": "ray.dataset_rows.row_digest",
    "ray.rows.place_of": "ray.dataset_rows.randomness_place",
    "remote.Source": "session.endpoint_session.EndpointProposal",
    "remote.source_of": "session.endpoint_session.endpoint_proposal_of",
    "report.blocks.Sample": "report.blocks.SampleText",
    "report.charts.figures_of": "report.charts.chart_table",
    "report.labels.apart": "report.labels.spread_labels",
    "report.reading.read_as": "report.result_files.validated_as",
    "scheduling.account.Account": "scheduling.request_state.RequestState",
    "scheduling.account.Judged": "scheduling.request_state.JudgedAttempt",
    "scheduling.allowance.Allowance": "scheduling.step_allowance.StepAllowance",
    "scheduling.aside.Aside": "scheduling.checker_pool.CheckerPool",
    "scheduling.backend.Decoded": "scheduling.backend.AttemptState",
    "scheduling.backend.Mask": "scheduling.backend.TokenMask",
    "scheduling.backend.Memo": "scheduling.backend.JudgementCache",
    "scheduling.backend.Narrowed": "scheduling.backend.ReducedDistribution",
    "scheduling.judging.COSTLY": "constraints.base.EXPENSIVE",
    "scheduling.judging.judged": "scheduling.judge_attempts.judge_attempts",
    "scheduling.source.InOrder": "scheduling.request_stream.OrderedDelivery",
    "scheduling.source.Source": "scheduling.request_stream.RequestStream",
    "serve.asking.Menu": "serve.request_policy.RequestPolicy",
    "serve.checking.Timed": "serve.time_limited.TimeLimited",
    "serve.fields.number": "serve.fields.number_field",
    "serve.figures.Figures": "serve.server_metrics.ServerMetrics",
    "serve.process.run": "serve.lifecycle.run_server",
    "serve.replies.told": "serve.replies.report_json",
    "serve.app.menu_of": "serve.models.model_policy.policies_of",
    "serve.refusals.Refused": "serve.error_responses.ErrorResponse",
    "serve.settings.Limits": "serve.server_settings.ServerLimits",
    "serve.settings.Settings": "serve.server_settings.ServerSettings",
    "serve.settings.read_settings": "serve.server_settings.read_server_settings",
    "serve.stopping.Until": "constraints.stop_strings.StopAt",
    "serve.wishes.Wish": "serve.parsed_request.ParsedRequest",
    "serve.wishes.read_wish": "serve.parsed_request.parse_request",
    "session.Session": "session.local_session.LocalSession",
    "training.claims.claims_of": "training.training_claims.claims_of_training",
    "training.drawing.draw": "training.round_attempts.draw_round",
    "training.report.charts_of": "training.training_report.training_charts",
    "training.state.spelled": "training.training_state.state_to_json",
    "ways.Way": "planning.alternatives.Alternative",
    "ways.way_of": "planning.alternatives.alternative_of",
    "words.ELSEWHERE": "proposals.ELSEWHERE",
    "words.FEW": "outcomes.FEW",
    "words.OR_REJECTION": "proposals.OR_REJECTION",
    "words.bounded": "outcomes.bounded",
}


def install() -> None:
    """Make old names importable."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldNames())


class _OldNames(MetaPathFinder, Loader):
    """Finds modules that were renamed, and adds their old names to modules that remain."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        module = name.removeprefix(ROOT)
        if not name.startswith(ROOT) or (module not in MODULES and module not in _remaining()):
            return None
        if module in MODULES:
            return ModuleSpec(name, self, is_package=any(old.startswith(f"{module}.") for old in MODULES))
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _then_old_names(spec.loader.exec_module)  # type: ignore[assignment, method-assign]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        _warn(module.__name__, ROOT + MODULES[module.__name__.removeprefix(ROOT)])
        module.__getattr__ = _look_up(module.__name__)  # type: ignore[method-assign]


@cache
def _remaining() -> frozenset[str]:
    return frozenset(name.rpartition(".")[0] for name in NAMES) - MODULES.keys()


def _then_old_names(execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        module.__getattr__ = _look_up(module.__name__)  # type: ignore[method-assign]

    return exec_module


def _look_up(module: str) -> Callable[[str], Any]:
    old = module.removeprefix(ROOT)

    def get(name: str) -> Any:
        new = NAMES.get(f"{old}.{name}")
        if new is None and old in MODULES and not name.startswith("_"):
            new = f"{MODULES[old]}.{name}"
        place, _, current = (new or "").rpartition(".")
        if not place or not hasattr(holder := import_module(ROOT + place), current):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(f"{module}.{name}", f"{ROOT}{new}")
        return getattr(holder, current)

    return get


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)
