"""Files in deploy/ pass their tools' linters and agree with boathook and each other."""

import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import crossplane
import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator

from boathook import config
from boathook.config import Settings
from boathook.http_client import addresses
from scripts import write_chart
from tests.guards.documents import parse_command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker/Dockerfile"
COMPOSE = DEPLOY / "compose"
SYSTEMD = DEPLOY / "systemd"
KUBERNETES = DEPLOY / "kubernetes"
SERVICES = ("boathook.service", "boathook-gateway@.service", "boathook-worker@.service")
MAX_EXPOSED = 2.0
"""Of ten, as `systemd-analyze security` counts; what it calls OK ends at 4."""
SLACK_S = 5.0
"""How long the supervisor may take to kill what has not stopped, besides."""


def run(*command: str | Path, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def program(name: str) -> str:
    """Return a program of this Python's environment, or of the path."""
    found = shutil.which(name, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    assert found is not None, f"{name} is missing: make dev"
    return found


def defaults() -> Settings:
    return config.load(None)


def to_drain_s() -> float:
    server = defaults().server
    return server.drain_s + server.linger_s + SLACK_S


def settings_of(toml: str, tmp_path: Path) -> Settings:
    """Load a boathook.toml as an installation would."""
    file = tmp_path / "boathook.toml"
    file.write_text(toml)
    return config.load(file)


def is_setting(variable: str) -> bool:
    """Return whether an environment variable sets something, as an unknown one is refused."""
    short = {"BOATHOOK_DATABASE_URL", "BOATHOOK_BIND", "BOATHOOK_DATA_DIR"}
    tables = config.all_sections()
    return variable in short | {f"BOATHOOK_{table}_{key}".upper() for table, keys in tables.items() for key in keys}


# The image.


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions with what follows each, continued lines put together."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest.strip()) for line in lines if line for word, _, rest in [line.partition(" ")]]


def given(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def environment_of_image() -> dict[str, str]:
    pairs = (pair.partition("=") for rest in given("ENV") for pair in shlex.split(rest))
    return {name: value for name, _, value in pairs}


class TestImage:
    def test_the_linter_passes(self):
        done = run(program("hadolint"), DOCKERFILE)
        assert done.returncode == 0, done.stdout

    def test_mutant_the_linter_detects_an_unpinned_package(self, tmp_path):
        wrong = tmp_path / "Dockerfile"
        wrong.write_text(DOCKERFILE.read_text().replace("tini=0.19.*", "tini"))
        assert "DL3008" in run(program("hadolint"), wrong).stdout

    def test_copied_files_exist_and_are_in_the_build_context(self):
        allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
        for rest in given("COPY"):
            *sources, _ = [word for word in rest.split() if not word.startswith("--")]
            if "--from=" not in rest:
                assert all((ROOT / source).exists() for source in sources), rest
                assert all(any(fnmatch(source, pattern) for pattern in allowed) for source in sources), rest

    def test_the_locked_packages_can_be_installed(self):
        (line,) = [rest for rest in given("RUN") if "requirements/run.lock" in rest]
        words = shlex.split(line)
        assert "--require-hashes" in words
        # What is installed here is what the lock names, so nothing is fetched; a lock that pip refuses fails.
        done = run(sys.executable, "-m", *words[words.index("pip") :], "--dry-run", "--no-index", "--quiet")
        assert done.returncode == 0, done.stderr

    def test_uninstalled_packages_are_in_the_lock(self):
        line = next(rest for rest in given("RUN") if "pip uninstall" in rest)
        names = re.search(r"uninstall --yes ([\w -]+)", line)[1].split()
        locked = (ROOT / "requirements/run.lock").read_text()
        assert [name for name in names if name != "pip" and not re.search(rf"^{name}==", locked, re.MULTILINE)] == []

    def test_its_entrypoint_is_a_valid_command(self):
        (entry,), (command,) = map(json.loads, given("ENTRYPOINT")), map(json.loads, given("CMD"))
        assert entry[:2] == ["tini", "--"]
        parse_command([*entry[2:], *command])

    def test_its_environment_sets_settings(self):
        names = [name for name in environment_of_image() if name.startswith("BOATHOOK_")]
        assert len(names) > 2
        assert [name for name in names if not is_setting(name)] == []

    def test_it_runs_as_a_user_and_keeps_data_in_a_volume(self):
        assert given("USER") == ["10001:10001"]
        assert json.loads(given("VOLUME")[0]) == [environment_of_image()["BOATHOOK_DATA_DIR"]]

    @pytest.mark.parametrize(("status", "is_well"), [(200, True), (503, False)])
    def test_its_health_is_that_of_the_gateway(self, status, is_well):
        command = json.loads(given("HEALTHCHECK")[0].partition("CMD ")[2])
        assert command[0] == "python"
        with answering(status) as port:
            assert f":{environment_of_image()['BOATHOOK_BIND'].rpartition(':')[2]}/" in command[2]
            done = run(sys.executable, *(word.replace(":8080/readyz", f":{port}/readyz") for word in command[1:]))
        assert (done.returncode == 0) is is_well


class answering:  # noqa: N801 - it reads as one
    """A server that answers every GET with one status."""

    def __init__(self, status: int) -> None:
        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Answer)

    def __enter__(self) -> int:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self._server.server_port

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


# Compose.


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())


class TestCompose:
    def test_it_fits_the_schema_of_compose(self):
        done = run(program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", COMPOSE / "compose.yaml")
        assert done.returncode == 0, done.stdout

    def test_its_mounts_exist(self, composed):
        binds = [
            one.partition(":")[0] for service in composed["services"].values() for one in service.get("volumes", ())
        ]
        assert [path for path in binds if path.startswith(".") and not (COMPOSE / path).exists()] == []
        volumes = {path for path in binds if not path.startswith(".")}
        assert volumes == set(composed["volumes"])

    def test_its_build_is_that_of_the_image(self, composed):
        build = composed["services"]["boathook"]["build"]
        context = (COMPOSE / build["context"]).resolve()
        assert (context, context / build["dockerfile"]) == (ROOT, DOCKERFILE)

    def test_its_secrets_are_made_by_the_script_and_read_by_the_settings(self, composed, tmp_path):
        place = shutil.copytree(COMPOSE, tmp_path / "compose")
        assert run("sh", place / "make-secrets.sh").returncode == 0
        made = {path.name: path.read_text() for path in (place / "secrets").iterdir()}
        assert set(made) == set(composed["secrets"])
        assert made["database_password"] in made["database_url"]
        assert run("sh", place / "make-secrets.sh").returncode == 0
        assert {path.name: path.read_text() for path in (place / "secrets").iterdir()} == made, "a secret was changed"

        toml = (COMPOSE / "boathook.toml").read_text().replace("/run/secrets", str(place / "secrets"))
        settings = settings_of(toml, tmp_path)
        assert settings.encryption_keys() == (made["encryption_key"],)
        assert made["stripe_secret"] == settings.resolve(settings.sources["stripe"].secrets[0], "secrets")
        used = {Path(word).name for word in re.findall(r"/run/secrets/\w+", (COMPOSE / "boathook.toml").read_text())}
        used |= {Path(word).name for word in re.findall(r"/run/secrets/\w+", (COMPOSE / "compose.yaml").read_text())}
        assert used == set(composed["secrets"])

    def test_nothing_but_what_boathook_needs_is_allowed(self, composed):
        service = composed["services"]["boathook"]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert "ports" not in composed["services"]["postgres"]

    def test_a_stop_may_take_as_long_as_a_drain(self, composed):
        assert int(composed["services"]["boathook"]["stop_grace_period"].removesuffix("s")) > to_drain_s()

    def test_its_environment_sets_settings(self, composed):
        assert all(map(is_setting, composed["services"]["boathook"]["environment"]))


# systemd.


def unit(name: str) -> dict[str, list[str]]:
    """Return a unit's settings by section and key."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in (SYSTEMD / name).read_text().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(f"{section}.{key}", []).append(value)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Return a folder with the units as they would be installed, with a program that is here."""
    folder = tmp_path_factory.mktemp("systemd")
    for path in SYSTEMD.iterdir():
        name = path.name.replace("gateway@", "gateway@8081").replace("worker@", "worker@1")
        folder.joinpath(name).write_text(path.read_text().replace("/opt/boathook/bin/boathook", "/bin/true"))
    return folder


class TestSystemd:
    def test_systemd_understands_each_unit(self, installed):
        units = [path for path in installed.iterdir() if path.suffix in {".service", ".timer"}]
        done = run(program("systemd-analyze"), "verify", "--man=no", *units)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_mutant_systemd_rejects_an_unknown_key(self, installed, tmp_path):
        wrong = tmp_path / "wrong.service"
        wrong.write_text((installed / "boathook.service").read_text().replace("KillMode", "KilMode"))
        assert "KilMode" in run(program("systemd-analyze"), "verify", "--man=no", wrong).stderr

    @pytest.mark.parametrize("name", [*SERVICES, "boathook-check.service"])
    def test_it_starts_a_command_of_boathook(self, name):
        (start,) = unit(name)["Service.ExecStart"]
        program_path, *words = start.replace("%i", "8081").split()
        assert program_path == "/opt/boathook/bin/boathook"
        parse_command(["boathook", *words])

    @pytest.mark.parametrize("name", SERVICES)
    def test_a_stop_may_take_as_long_as_a_drain(self, name):
        found = unit(name)
        assert int(found["Service.TimeoutStopSec"][0].removesuffix("s")) > to_drain_s()
        assert found["Service.KillMode"] == ["mixed"], "children hear of a stop from their supervisor alone"

    @pytest.mark.parametrize("name", SERVICES)
    def test_it_is_hardly_exposed(self, name, installed):
        path = installed / name.replace("gateway@", "gateway@8081").replace("worker@", "worker@1")
        done = run(program("systemd-analyze"), "security", "--offline=true", f"--threshold={MAX_EXPOSED * 10:g}", path)
        assert done.returncode == 0, done.stdout[-400:]

    def test_all_units_have_the_same_hardening(self):
        texts = [(SYSTEMD / name).read_text().partition("# What it may use.")[2] for name in SERVICES]
        assert texts[0]
        assert set(texts) == {texts[0]}

    @pytest.mark.parametrize("name", SERVICES)
    def test_its_environment_sets_settings(self, name):
        names = [one.partition("=")[0] for one in unit(name)["Service.Environment"]]
        assert [one for one in names if one.startswith("BOATHOOK_") and not is_setting(one)] == []

    def test_its_user_is_made(self):
        made = (SYSTEMD / "boathook.sysusers").read_text()
        assert re.search(rf"^u {unit('boathook.service')['Service.User'][0]} ", made, re.MULTILINE)


# Kubernetes.


def manifests() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path, document


RESOURCES = [(path, one) for path, one in manifests() if path.name != "kustomization.yaml"]
WORKLOADS = [one for _, one in RESOURCES if one["kind"] in {"StatefulSet", "Deployment"}]


def name_of(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['kind']}-{value['metadata'].get('name', 'migrate')}"
    return value.name if isinstance(value, Path) else str(value)


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    return workload["spec"]["template"]["spec"]


def selected(labels: dict[str, str]) -> list[dict[str, Any]]:
    """Return the workloads whose pods have all these labels."""
    return [one for one in WORKLOADS if labels.items() <= one["spec"]["template"]["metadata"]["labels"].items()]


class TestKubernetes:
    @pytest.mark.parametrize(("path", "resource"), RESOURCES, ids=name_of)
    def test_each_resource_fits_its_schema(self, path, resource):
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)

    def test_mutant_a_misspelt_field_does_not_fit(self):
        wrong = json.loads(json.dumps(WORKLOADS[0]).replace("readinessProbe", "readynessProbe"))
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)

    @pytest.mark.parametrize("folder", ["base", "example"])
    def test_each_file_is_taken_in_by_its_kustomization(self, folder):
        kustomization = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())
        files = {path.name for path in (KUBERNETES / folder).glob("*.yaml")} - {"kustomization.yaml", "migrate.yaml"}
        named = {one for one in kustomization["resources"] if not one.startswith("..")}
        assert named == files
        assert all((KUBERNETES / folder / one).exists() for one in kustomization["resources"])

    def test_labels_are_put_into_no_selector(self):
        kustomization = yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text())
        assert not any(one.get("includeSelectors") for one in kustomization["labels"])
        assert "commonLabels" not in kustomization

    @pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
    def test_each_workload_selects_only_its_pods(self, workload):
        assert selected(workload["spec"]["selector"]["matchLabels"]) == [workload]

    @pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
    def test_each_pod_is_restricted(self, workload):
        pod = pod_of(workload)
        (container,) = pod["containers"]
        uid = int(given("USER")[0].partition(":")[0])
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, uid)
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }

    @pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
    def test_each_pod_has_gateway_probes(self, workload):
        (container,) = pod_of(workload)["containers"]
        probes = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
        assert probes == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
        roles = {one["name"]: one.get("value") for one in container["env"]}["BOATHOOK_SERVER_ROLES"]
        assert "gateway" in roles.split(",")
        assert set(roles.split(",")) <= set(defaults().server.roles)

    @pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
    def test_a_stop_may_take_as_long_as_a_drain(self, workload):
        pod = pod_of(workload)
        (container,) = pod["containers"]
        waits_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
        assert pod["terminationGracePeriodSeconds"] > waits_s + to_drain_s()

    @pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
    def test_its_command_and_environment_are_boathooks(self, workload):
        (container,) = pod_of(workload)["containers"]
        parse_command(["boathook", *container["args"]])
        assert [one["name"] for one in container["env"] if not is_setting(one["name"])] == []

    @pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
    def test_a_spool_is_on_a_retained_volume_or_disabled(self, workload):
        pod = pod_of(workload)
        variables = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        mounted = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
        volume = mounted[environment_of_image()["BOATHOOK_DATA_DIR"]]
        claims = [one["metadata"]["name"] for one in workload["spec"].get("volumeClaimTemplates", ())]
        assert (volume in claims) is (variables.get("BOATHOOK_SPOOL_ENABLED") != "false")
        if claims:
            kept = {"whenDeleted": "Retain", "whenScaled": "Retain"}
            assert workload["spec"]["persistentVolumeClaimRetentionPolicy"] == kept

    def test_ingress_routes_senders_to_gateways_with_a_spool(self):
        services = {one["metadata"]["name"]: one for _, one in RESOURCES if one["kind"] == "Service"}
        (found,) = selected(services["boathook-gateway"]["spec"]["selector"])
        assert found["kind"] == "StatefulSet"
        (ingress,) = [one for _, one in RESOURCES if one["kind"] == "Ingress"]
        led = {
            path["path"]: path["backend"]["service"]["name"] for path in ingress["spec"]["rules"][0]["http"]["paths"]
        }
        assert led["/in"] == "boathook-gateway"
        assert not {"/", "/console", "/metrics", "/api"} & set(led), "not for the world"
        assert set(led.values()) <= set(services)

    def test_each_workload_has_a_budget_for_disruptions(self):
        budgets = [one for _, one in RESOURCES if one["kind"] == "PodDisruptionBudget"]
        covered = [selected(one["spec"]["selector"]["matchLabels"])[0]["metadata"]["name"] for one in budgets]
        assert sorted(covered) == sorted(one["metadata"]["name"] for one in WORKLOADS)

    def test_network_policies_deny_the_guards_networks(self):
        policy = next(one for _, one in RESOURCES if one["metadata"].get("name") == "boathook-strangers")
        blocks = [one["ipBlock"] for one in policy["spec"]["egress"][0]["to"]]
        shut = {ip_network(one) for block in blocks for one in block["except"]}
        assert [ip_network(block["cidr"]) for block in blocks] == [ip_network("0.0.0.0/0"), addresses.PUBLIC_6]
        denied_6 = {network for network, _ in addresses.DENIED_6 if network.subnet_of(addresses.PUBLIC_6)}
        assert shut == {network for network, _ in addresses.DENIED_4} | denied_6

    def test_its_settings_are_valid_and_their_secrets_listed(self, tmp_path):
        toml = (KUBERNETES / "base/boathook.toml").read_text()
        for name in (used := set(re.findall(r"/run/secrets/boathook/([\w-]+)", toml))):
            (tmp_path / name).write_text("postgresql://db/boathook" if "url" in name else "a-secret-of-some-length")
        settings_of(toml.replace("/run/secrets/boathook", str(tmp_path)), tmp_path).database_url()
        made = set(re.findall(r"--from-file=([\w-]+)", (KUBERNETES / "example/kustomization.yaml").read_text()))
        assert used == made


# The chart.


def values() -> dict[str, Any]:
    return yaml.safe_load((write_chart.CHART / "values.yaml").read_text())


def resource(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for _, one in RESOURCES if (one["kind"], one["metadata"].get("name")) == (kind, name)]
    return found


class TestChart:
    def test_its_templates_are_up_to_date(self):
        found = dict(write_chart.templates())
        assert {path: path.read_text() for path in found} == found, "run make docs"

    def test_it_has_a_template_of_every_manifest(self):
        own = {"namespace.yaml"}  # Helm has --create-namespace
        names = {path.name for path, _ in RESOURCES}
        assert {path.name for path, _ in write_chart.templates()} == names - own

    @pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
    def test_its_values_are_those_of_the_manifests(self, workload):
        own = values()[workload["metadata"]["name"].removeprefix("boathook-")]
        assert own["replicas"] == workload["spec"]["replicas"]
        assert own["resources"] == pod_of(workload)["containers"][0]["resources"]
        for claim in workload["spec"].get("volumeClaimTemplates", ()):
            assert own["storage"] == claim["spec"]["resources"]["requests"]["storage"]

    def test_its_settings_and_networks_are_those_of_the_manifests(self):
        assert values()["settings"] == (KUBERNETES / "base/boathook.toml").read_text()
        policy = resource("NetworkPolicy", "boathook")["spec"]
        (callers,) = policy["ingress"][0]["from"][0]["namespaceSelector"]["matchExpressions"]
        assert values()["network"]["callers"] == callers["values"]
        assert {"ipBlock": {"cidr": values()["network"]["database"]}} in policy["egress"][1]["to"]
        ingress = resource("Ingress", "boathook")
        assert values()["ingress"]["annotations"] == ingress["metadata"]["annotations"]
        assert values()["ingress"]["host"] == ingress["spec"]["rules"][0]["host"]

    def test_its_values_fit_their_schema_and_a_misspelt_one_does_not(self):
        schema = Draft7Validator(json.loads((write_chart.CHART / "values.schema.json").read_text()))
        assert list(schema.iter_errors(values())) == []
        assert list(schema.iter_errors(values() | {"gatewy": {}}))

    def test_its_version_is_that_of_boathook(self):
        chart = yaml.safe_load((write_chart.CHART / "Chart.yaml").read_text())
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.skipif(shutil.which("helm") is None, reason="needs the program helm")
@pytest.mark.extended("needs Helm, which is no package of the distribution; the chart's templates and values stay")
class TestHelm:
    def rendered(self, *options: str) -> list[dict[str, Any]]:
        # A helm built from source takes the oldest version for the cluster's.
        version = ("--kube-version", kubernetes_validate.latest_version())
        done = run("helm", "template", "boathook", write_chart.CHART, "--namespace", "boathook", *version, *options)
        assert done.returncode == 0, done.stderr
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    def test_helm_lint_passes(self):
        done = run("helm", "lint", "--strict", write_chart.CHART)
        assert done.returncode == 0, done.stdout

    def test_the_rendered_chart_equals_the_manifests(self):
        found = [plain(one) for one in self.rendered() if one["kind"] not in {"ConfigMap", "Job"}]
        base = [one for path, one in manifests() if path.parent.name == "base" and path.name != "kustomization.yaml"]
        assert sorted(json.dumps(one, sort_keys=True) for one in found) == sorted(
            json.dumps(one, sort_keys=True) for one in base
        )

    def test_the_rendered_chart_fits_the_kubernetes_schemas(self):
        found = self.rendered("--set", "ingress.enabled=true")
        assert {"Ingress", "Job", "ConfigMap", "StatefulSet"} <= {one["kind"] for one in found}
        for one in found:
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)

    def test_chosen_values_are_rendered(self):
        found = self.rendered(
            "--set", "ingress.enabled=true,ingress.host=in.example.org,worker.replicas=7,image.tag=v2"
        )
        by_name = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in found if "spec" in one}
        assert by_name["Ingress", "boathook"]["rules"][0]["host"] == "in.example.org"
        worker = by_name["Deployment", "boathook-worker"]
        assert (worker["replicas"], worker["template"]["spec"]["containers"][0]["image"]) == (7, "boathook:v2")

    def test_a_misspelt_value_is_refused_by_its_name(self):
        done = run("helm", "template", "boathook", write_chart.CHART, "--set", "gateway.replica=3")
        assert done.returncode != 0
        assert "replica" in done.stderr


def plain(rendered: dict[str, Any]) -> dict[str, Any]:
    """Return Helm's output without its additions to a manifest."""
    del rendered["metadata"]["labels"]
    if rendered["kind"] in {"StatefulSet", "Deployment"}:
        del rendered["spec"]["template"]["metadata"]["annotations"]
        pod_of(rendered)["containers"][0]["image"] = "boathook"
    return rendered


# The proxy.


def directives(block: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    for one in block:
        yield one["directive"], one["args"]
        yield from directives(one.get("block", []))


class TestProxy:
    def test_nginx_understands_it(self, tmp_path):
        whole = tmp_path / "nginx.conf"
        whole.write_text(f"events {{}}\nhttp {{\n{(DEPLOY / 'proxy/nginx.conf').read_text()}\n}}\n")
        parsed = crossplane.parse(str(whole), single=True, strict=True)
        assert (parsed["status"], parsed["errors"]) == ("ok", [])
        found = dict(directives(parsed["config"][0]["parsed"]))
        limits = defaults().limits
        assert float(found["keepalive_timeout"][0].removesuffix("s")) < limits.keep_alive_s
        assert int(found["client_max_body_size"][0].removesuffix("m")) * 2**20 >= max(
            limits.max_body, limits.max_provider_body
        )
        assert found["proxy_set_header"] == ["X-Forwarded-Proto", "$scheme"]

    @pytest.mark.parametrize(
        ("path", "is_public"),
        [
            ("/in/stripe", True), ("/webhooks/stripe", True), ("/portal", True), ("/portal/static/base.css", True),
            ("/console/csp-reports", True), ("/console", False), ("/console/csp-reports/x", False),
            ("/console/events", False), ("/api/v1/app", False),
        ],
    )  # fmt: skip
    def test_customers_reach_the_portal_and_only_operators_the_console(self, tmp_path, path, is_public):
        whole = tmp_path / "nginx.conf"
        whole.write_text(f"events {{}}\nhttp {{\n{(DEPLOY / 'proxy/nginx.conf').read_text()}\n}}\n")
        (http,) = [
            one
            for one in crossplane.parse(str(whole), single=True)["config"][0]["parsed"]
            if one["directive"] == "http"
        ]
        (server,) = [one for one in http["block"] if one["directive"] == "server"]
        for location in (one for one in server["block"] if one["directive"] == "location"):
            *kind, pattern = location["args"]
            if re.search(pattern, path) if kind == ["~"] else path.startswith(pattern) and pattern != "/":
                names = [one["directive"] for one in location["block"]]
                assert "proxy_pass" in names
                assert ("deny" not in names) == is_public
                return
        raise AssertionError(f"nothing serves {path}")

    def test_mutant_a_misspelt_directive_is_found(self, tmp_path):
        wrong = tmp_path / "nginx.conf"
        text = (DEPLOY / "proxy/nginx.conf").read_text().replace("proxy_pass", "proxi_pass")
        wrong.write_text(f"events {{}}\nhttp {{\n{text}\n}}\n")
        assert crossplane.parse(str(wrong), single=True, strict=True)["errors"]
