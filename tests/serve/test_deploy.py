"""Files of ``deploy/``: the dashboard and the alerts ask for metrics that the server has, and parts fit together."""

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from guardwrap.constraints import load
from guardwrap.serve.server_settings import ServerLimits, read_server_settings
from tests.serve.fixtures_server import ASKED, HAS_A, ROOT

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
PROMETHEUS = "up"
"""The metric that Prometheus adds itself."""


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def alerts() -> list[dict[str, Any]]:
    return [rule for group in read("alerts.yml")["groups"] for rule in group["rules"]]


def queries(dashboard: Any) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def asked_of(query: str) -> dict[str, set[str]]:
    """Return the metrics of a query in PromQL, and the labels that each is selected by."""
    strings = re.sub(r'"[^"]*"', '""', query)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right) *\([^)]*\)", "", strings)
    bare = re.sub(r"\[[^\]]*\]|\bor\b|\band\b|\bunless\b", "", bare)
    names = re.finditer(r"\b([a-z_]\w*)\b(?! *\()(?:\{([^}]*)\})?", re.sub(r"\{[^}]*\}", lambda m: m[0], bare))
    metrics: dict[str, set[str]] = {}
    for name, selected in (match.groups() for match in names if not inside_braces(bare, match.start())):
        metrics.setdefault(name, set()).update(re.findall(r"(\w+) *(?:=~|!=|!~|=)", selected or ""))
    return metrics


def inside_braces(query: str, place: int) -> bool:
    return query.rfind("{", 0, place) > query.rfind("}", 0, place)


def labels_after(query: str) -> set[str]:
    """Return the labels that a query groups by."""
    return {label for listed in re.findall(r"\bby *\(([^)]*)\)", query) for label in re.findall(r"\w+", listed)}


def exposed(text: str) -> dict[str, set[str]]:
    """Return the metrics of a server with their labels, and those that Prometheus adds to each."""
    metrics: dict[str, set[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)(?:\{(.*)\})?", line).groups()  # type: ignore[union-attr]
            metrics.setdefault(name, {"job", "instance"}).update(re.findall(r'(\w+)="', labels or ""))
    return metrics


def missing(asked: list[str], metrics: dict[str, set[str]]) -> list[str]:
    """Return the metrics and labels that queries name and the server does not have."""
    lacking = []
    for query in asked:
        parts = asked_of(query)
        assert parts, query
        grouped = labels_after(query)
        for name, labels in parts.items():
            if name not in metrics and name != PROMETHEUS:
                lacking.append(name)
            elif name != PROMETHEUS:
                lacking += [f"{name}{{{label}}}" for label in (labels | grouped) - metrics[name]]
    return lacking


@pytest.fixture(scope="module")
def metrics(client: Any, http: Any) -> dict[str, set[str]]:
    """The metrics after an accepted text with rejected attempts, and a spent budget."""
    client.chat.completions.create(**ASKED, n=3, extra_body=HAS_A)
    never = {"guardwrap": {"constraint": "never", "budget": {"max_attempts": 3}}}
    assert http.post("/v1/chat/completions", json={**ASKED, **never}).status_code == 422
    return exposed(http.get("/metrics").text)


@pytest.mark.slow
def test_each_panel_and_alert_asks_for_metrics_that_the_server_has(metrics: Any) -> None:
    assert len(queries(DASHBOARD)) >= 15
    assert missing(queries(DASHBOARD), metrics) == []
    assert missing([rule["expr"] for rule in alerts()], metrics) == []
    (variable,) = DASHBOARD["templating"]["list"]
    assert missing([variable["query"]["query"].removeprefix("label_values(").split(",")[0]], metrics) == []


@pytest.mark.slow
def test_the_dashboard_shows_all_metrics_of_the_server(metrics: Any) -> None:
    """A metric that no panel shows is useless, or a panel is missing."""
    shown = {name for query in [*queries(DASHBOARD), *(rule["expr"] for rule in alerts())] for name in asked_of(query)}
    stems = {
        re.sub("_(bucket|sum|count|total|created)$", "", name) for name in metrics if name.startswith("guardwrap_")
    }
    assert stems <= {re.sub("_(bucket|sum|count|total)$", "", name) for name in shown}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "lacking"),
    [
        ("guardwrap_queued{", "guardwrap_queue{", "guardwrap_queue"),
        ("guardwrap_tokens_total", "guardwrap_tokens", "guardwrap_tokens"),
        ("_seconds_bucket", "_second_bucket", "guardwrap_request_second_bucket"),
        ("by (rule)", "by (rules)", "guardwrap_rejected_total{rules}"),
        (', ended!="complete"', ', end!="complete"', "guardwrap_prompts_total{end}"),
    ],
)
def test_negative_control_a_misspelled_metric_is_missing(metrics: Any, right: str, wrong: str, lacking: str) -> None:
    changed = [query.replace(right, wrong) for query in queries(DASHBOARD)]
    assert changed != queries(DASHBOARD)
    assert set(missing(changed, metrics)) == {lacking}


def test_panels_have_a_title_a_description_a_unit_and_room() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "prometheus"}
        place = panel["gridPos"]
        cells = {(x, place["y"]) for x in range(place["x"], place["x"] + place["w"])}
        assert not cells & places, panel["title"]
        assert max(x for x, _ in cells) < 24
        places |= cells
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["uid"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == read("prometheus.yml")["global"]["scrape_interval"]


def test_alerts_say_what_to_do_and_name_panels_that_exist() -> None:
    titles = {panel["title"] for panel in DASHBOARD["panels"]}
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert set(re.findall('panel "([^"]+)"', rule["annotations"]["description"])) <= titles
    tested = {each["alertname"] for test in read("alerts_test.yml")["tests"] for each in test["alert_rule_test"]}
    assert tested == {rule["alert"] for rule in alerts()}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_prometheus_accepts_its_files() -> None:
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=DEPLOY, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def mounts(service: Any) -> list[tuple[str, str]]:
    """Return the files and folders that a service of compose.yaml gets from ``deploy/``, and where it sees them."""
    split = [volume.split(":") for volume in service.get("volumes", ())]
    return [(source, target) for source, target, *_ in split if source.startswith("./")]


def test_compose_mounts_what_there_is() -> None:
    services = read("compose.yaml")["services"]
    for service in services.values():
        assert all((DEPLOY / source).exists() for source, _ in mounts(service))
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["cap_drop"] == ["ALL"]
    assert (DEPLOY / services["guardwrap"]["build"]["context"] / services["guardwrap"]["build"]["dockerfile"]).exists()
    seen = dict(mounts(services["prometheus"]))
    folder = Path(seen["./prometheus.yml"]).parent
    assert [str(folder / name) for name in read("prometheus.yml")["rule_files"]] == [seen["./alerts.yml"]]
    (target,) = read("prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target.partition(":")[0] in services
    (provider,) = read("grafana/provisioning/dashboards/guardwrap.yaml")["providers"]
    assert Path(dict(mounts(services["grafana"]))["./grafana/dashboard.json"]).parent == Path(
        provider["options"]["path"]
    )


def test_the_settings_of_compose_are_valid_and_their_rules_hold() -> None:
    settings = read_server_settings(DEPLOY / "serve" / "serve.yaml")
    files = [load(path) for path in sorted(Path(str(settings.constraints)).glob("*.yaml"))]
    assert len(files) == 2
    for file in files:
        assert file.accepts
        assert all(file.constraint.accepts(text) for text in file.accepts)
        assert not any(file.constraint.accepts(text) for text in file.rejects)


def seconds(text: Any) -> float:
    return float(str(text).removesuffix("s"))


def test_everybody_waits_longer_than_the_grace_period() -> None:
    grace = ServerLimits().grace_seconds + 3  # errors to the requests that are left take up to three seconds
    assert seconds(read("compose.yaml")["services"]["guardwrap"]["stop_grace_period"]) > grace
    unit = (DEPLOY / "guardwrap.service").read_text()
    assert seconds(re.findall("^TimeoutStopSec=(.*)$", unit, re.M)[0]) > grace


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Return the instructions of the last stage of a Dockerfile with their arguments."""
    joined = re.sub(r"^ *#.*\n", "", dockerfile, flags=re.M).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    last = max(i for i, line in enumerate(lines) if line[0] == "FROM")
    return [(name, rest) for name, rest in lines[last:]]


def test_the_image_runs_as_a_number_in_exec_form_with_a_health_check() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    steps = dict(instructions(dockerfile))
    assert re.fullmatch(r"\d+:\d+", steps["USER"])
    assert json.loads(steps["ENTRYPOINT"])[:2] == ["guardwrap", "serve"]
    assert json.loads(steps["CMD"])
    _, check = steps["HEALTHCHECK"].split("CMD", 1)
    assert "/health" in json.loads(check)[-1]
    assert re.search(r"^ARG BASE=python:\d+\.\d+\.\d+-slim-\w+$", dockerfile, re.M)
    lock = (ROOT / "requirements.lock").read_text()
    (torch,) = re.findall(r"torch==([\d.]+)", dockerfile)
    assert f"torch=={torch}" in lock


@pytest.mark.slow
def test_the_health_check_of_the_image_fails_if_nothing_answers(server: Any) -> None:
    _, check = dict(instructions((DEPLOY / "Dockerfile").read_text()))["HEALTHCHECK"].split("CMD", 1)
    command = json.loads(check)
    for port, healthy in ((server.port, True), (1, False)):
        own = [part.replace(":8000/", f":{port}/") for part in command]
        assert (subprocess.run(own, capture_output=True).returncode == 0) is healthy


def test_what_the_image_copies_is_in_its_context() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.M)
    assert {name for line in copied for name in line.split()} == kept
    assert all((ROOT / name).exists() for name in kept)


def manifests() -> dict[str, Any]:
    """Return the manifests by their kinds."""
    files = [(DEPLOY / name).read_text() for name in ("kubernetes.yaml", "kserve.yaml")]
    return {each["kind"]: each for text in files for each in yaml.safe_load_all(text)}


def patience(probe: dict[str, Any]) -> float:
    """Return the seconds of failures after which a probe acts."""
    return float(probe["periodSeconds"] * probe["failureThreshold"])


@pytest.mark.slow
def test_the_manifests_fit_the_image_and_the_server(http: Any) -> None:
    kinds = manifests()
    assert set(kinds) == {"Deployment", "Service", "InferenceService"}
    image = dict(instructions((DEPLOY / "Dockerfile").read_text()))
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (port,) = container["ports"]
    (served,) = kinds["InferenceService"]["spec"]["predictor"]["containers"]
    assert port["containerPort"] == served["ports"][0]["containerPort"] == int(image["EXPOSE"])
    assert kinds["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert kinds["Service"]["spec"]["selector"] == kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kinds["Deployment"]["spec"]["selector"]["matchLabels"] == kinds["Service"]["spec"]["selector"]
    assert pod["securityContext"]["fsGroup"] == int(image["USER"].split(":")[1])
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
    assert container["args"] == served["args"] == ["--config", f"{mounted['settings']}/serve.yaml"]
    assert all(path in image["ENV"] + image["RUN"] for path in (mounted["cache"], mounted["tmp"]))
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert http.get(container[name]["httpGet"]["path"]).status_code == 200
        assert container[name]["httpGet"]["port"] == port["name"]
    assert served["readinessProbe"]["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"]


def test_a_pod_that_drains_is_not_killed() -> None:
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    grace = ServerLimits().grace_seconds + 3
    assert patience(container["livenessProbe"]) > grace
    assert pod["terminationGracePeriodSeconds"] > container["lifecycle"]["preStop"]["sleep"]["seconds"] + grace
    assert patience(container["startupProbe"]) >= 300


@pytest.mark.slow
def test_the_page_lists_the_metrics_of_the_server(metrics: Any) -> None:
    page = (ROOT / "docs" / "serve.md").read_text()
    (table,) = re.findall(r"^\| metric \|.*?(?=\n\n)", page, re.M | re.S)
    listed = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    whole = {re.sub("_(bucket|sum|count)$", "", name) for name in metrics if not name.endswith("_created")}
    assert listed <= whole
    assert listed >= {name for name in whole if name.startswith("guardwrap_")}


def test_negative_control_the_parser_of_queries() -> None:
    query = 'sum by (le) (rate(a_bucket{x=~"$i", y!="b c"}[5m])) / on () group_left () (d or vector(0)) > 0.5 * e'
    assert asked_of(query) == {"a_bucket": {"x", "y"}, "d": set(), "e": set()}
    changed = copy.deepcopy(DASHBOARD)
    changed["panels"][0]["targets"][0]["expr"] = "nothing_like_this"
    assert missing(queries(changed), {}) != missing(queries(DASHBOARD), {})
