"""The manifests are what Kubernetes takes, and fit the service."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256

import kubernetes_validate
import pytest
import yaml

from tests.support.certificates import Authority

# From the oldest that is still maintained by somebody to the newest that the schemas are there for.
VERSIONS = ["1.31", kubernetes_validate.latest_version()]


@pytest.fixture(scope="session")
def manifests(request):
    base = request.config.rootpath / "deploy" / "kubernetes"
    return [*in_directory(base), *in_directory(base / "prometheus-operator")]


def in_directory(directory):
    named = yaml.safe_load((directory / "kustomization.yaml").read_text())["resources"]
    others = {"kustomization.yaml", "Chart.yaml", "values.yaml"}
    assert {path.name for path in directory.glob("*.yaml")} - others == set(named)
    return [
        manifest
        for name in named
        for manifest in yaml.safe_load_all((directory / name).read_text())
        if manifest
    ]


def test_the_base_needs_no_kinds_that_a_cluster_may_lack(request):
    kinds = {each["kind"] for each in in_directory(request.config.rootpath / "deploy" / "kubernetes")}
    assert "ServiceMonitor" not in kinds


KUBECTL = shutil.which("kubectl")


@pytest.mark.skipif(KUBECTL is None, reason="this machine has no kubectl")
def test_a_kustomization_can_set_the_digest_of_the_image_and_add_prometheus(request, tmp_path):
    base = os.path.relpath(request.config.rootpath / "deploy" / "kubernetes", tmp_path)
    digest = f"sha256:{'0' * 64}"
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [{base}]\ncomponents: [{base}/prometheus-operator]\n"
        f"images: [{{name: sampleapp, newName: registry.example/sampleapp, digest: '{digest}'}}]\n"
    )
    rendered = subprocess.run(
        [KUBECTL, "kustomize", "--load-restrictor=LoadRestrictionsNone", tmp_path],
        check=True,
        stdout=subprocess.PIPE,
    )
    made = list(yaml.safe_load_all(rendered.stdout))
    (deployment,) = of_kind(made, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example/sampleapp@{digest}"
    assert {each["metadata"].get("namespace") for each in made if each["kind"] != "Namespace"} == {
        "sampleapp"
    }
    assert len(of_kind(made, "ServiceMonitor")) == 1


HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="this machine has no helm")


@pytest.fixture
def chart(request):
    """A function that renders the chart with values, and returns its objects by kind and name."""

    directory = request.config.rootpath / "deploy/kubernetes"

    def render(values):
        rendered = subprocess.run(
            [HELM, "template", "release", directory, "--namespace", "sampleapp", "--values", "-"],
            check=True,
            input=json.dumps(values),
            stdout=subprocess.PIPE,
            text=True,
        )
        return by_name(yaml.safe_load_all(rendered.stdout))

    return render


def by_name(manifests):
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


@needs_helm
def test_the_chart_passes_the_linter_of_helm(request):
    linted = subprocess.run(
        [HELM, "lint", "--strict", request.config.rootpath / "deploy/kubernetes"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert linted.returncode == 0, linted.stdout


@needs_helm
@pytest.mark.skipif(KUBECTL is None, reason="this machine has no kubectl")
def test_the_chart_renders_the_objects_of_the_kustomization(request, chart):
    built = subprocess.run(
        [KUBECTL, "kustomize", request.config.rootpath / "deploy/kubernetes"],
        check=True,
        stdout=subprocess.PIPE,
    )
    expected = by_name(yaml.safe_load_all(built.stdout))
    del expected["Namespace", "sampleapp"]
    rendered = chart({})
    for each in [*rendered.values(), *expected.values()]:
        for label in ("instance", "managed-by"):
            each["metadata"].get("labels", {}).pop(f"app.kubernetes.io/{label}", None)
    for each in (rendered, expected):
        # Their order means nothing to the service.
        each["Deployment", "sampleapp"]["spec"]["template"]["spec"]["containers"][0]["env"].sort(
            key=lambda variable: variable["name"]
        )
    assert rendered == expected


@needs_helm
@pytest.mark.parametrize("version", VERSIONS)
def test_the_values_of_the_chart_set_what_they_name(chart, manifests, version):
    rendered = chart(
        {
            "image": {"repository": "registry.example/sampleapp", "digest": f"sha256:{'0' * 64}"},
            "broker": "kafka://kafka.example:9092",
            "env": {"SAMPLEAPP_MAX_BODY_MEMORY": 268435456, "SAMPLEAPP_DRAIN_DELAY": "5"},
            "replicas": {"min": 3, "max": 9},
            "secrets": {"callers": "others"},
            "serviceMonitor": True,
            "ingress": {"enabled": True, "host": "gateway.example"},
        }
    )
    pod = rendered["Deployment", "sampleapp"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == f"registry.example/sampleapp@sha256:{'0' * 64}"
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    (deployment,) = of_kind(manifests, "Deployment")
    (unchanged,) = deployment["spec"]["template"]["spec"]["containers"]
    assert variables == {variable["name"]: variable["value"] for variable in unchanged["env"]} | {
        "SAMPLEAPP_BROKER": "kafka://kafka.example:9092",
        "SAMPLEAPP_MAX_BODY_MEMORY": "268435456",
        "SAMPLEAPP_DRAIN_DELAY": "5",
    }
    autoscaler = rendered["HorizontalPodAutoscaler", "sampleapp"]["spec"]
    assert (autoscaler["minReplicas"], autoscaler["maxReplicas"]) == (3, 9)
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"]}
    assert secrets == {"tls": "sampleapp-tls", "callers": "others", "kafka": "sampleapp-kafka"}
    assert ("ServiceMonitor", "sampleapp") in rendered
    (rule,) = rendered["Ingress", "sampleapp"]["spec"]["rules"]
    assert rule["host"] == "gateway.example"
    for kind, name in rendered:
        if kind != "ServiceMonitor":
            kubernetes_validate.validate(rendered[kind, name], version, strict=True)


def of_kind(manifests, kind):
    return [manifest for manifest in manifests if manifest["kind"] == kind]


@pytest.fixture
def deployment(manifests):
    (deployment,) = of_kind(manifests, "Deployment")
    return deployment


@pytest.fixture
def pod(deployment):
    return deployment["spec"]["template"]["spec"]


@pytest.fixture
def container(pod):
    (container,) = pod["containers"]
    return container


@pytest.fixture
def variables(container):
    return {variable["name"]: variable["value"] for variable in container["env"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_each_follows_the_schema_of_kubernetes(manifests, version):
    for manifest in manifests:
        if manifest["kind"] != "ServiceMonitor":
            # That kind is not Kubernetes' own.
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_service_would_start_with_the_variables_and_the_secrets(variables, tmp_path):
    authority = Authority(tmp_path)
    issued = authority.server("tls")
    for name in ("tls", "callers", "kafka"):
        (tmp_path / name).mkdir()
    (tmp_path / "tls" / "tls.key").write_bytes(issued.key.read_bytes())
    (tmp_path / "tls" / "tls.crt").write_bytes(issued.certificate.read_bytes())
    (tmp_path / "callers" / "callers.toml").write_text(
        '[callers.thermometer]\npublish = ["readings"]\n[[callers.thermometer.tokens]]\n'
        f'sha256 = "{sha256(b"a token").hexdigest()}"\n'
    )
    (tmp_path / "kafka" / "credentials").write_text("username=sampleapp\npassword=horse battery staple\n")
    (tmp_path / "kafka" / "ca.crt").write_bytes(authority.certificate.read_bytes())
    here = {name: value.replace("/etc/sampleapp", str(tmp_path)) for name, value in variables.items()}
    checked = subprocess.run(
        [sys.executable, "-m", "sampleapp", "--check"],
        env={**os.environ, **here},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert "has no effect" not in checked.stdout + checked.stderr


def test_all_that_select_pods_select_those_of_the_deployment(manifests, deployment):
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        *(service["spec"]["selector"] for service in of_kind(manifests, "Service")),
        *(budget["spec"]["selector"]["matchLabels"] for budget in of_kind(manifests, "PodDisruptionBudget")),
        *(policy["spec"]["podSelector"]["matchLabels"] for policy in of_kind(manifests, "NetworkPolicy")),
    ]
    assert len(selectors) == 5
    assert all(selector.items() <= labels.items() for selector in selectors)


def test_prometheus_is_sent_to_the_service_for_it(manifests):
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    selected = [
        service
        for service in of_kind(manifests, "Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ]
    assert [port["name"] for service in selected for port in service["spec"]["ports"]] == [endpoint["port"]]
    assert endpoint["path"] == "/metrics"


def test_the_job_of_prometheus_is_the_one_that_the_alerts_expect(request, manifests):
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    (service,) = [
        each for each in of_kind(manifests, "Service") if each["metadata"]["name"].endswith("-admin")
    ]
    alerts = (request.config.rootpath / "docs/monitoring/sampleapp-alerts.yml").read_text()
    assert set(re.findall(r'job="(.*?)"', alerts)) == {
        service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    }


def test_the_autoscaler_decides_how_many_pods_of_the_deployment_there_are(manifests, deployment, container):
    (autoscaler,) = of_kind(manifests, "HorizontalPodAutoscaler")
    target = {
        "apiVersion": deployment["apiVersion"],
        "kind": "Deployment",
        "name": deployment["metadata"]["name"],
    }
    assert autoscaler["spec"]["scaleTargetRef"] == target
    assert "replicas" not in deployment["spec"]
    (metric,) = autoscaler["spec"]["metrics"]
    request_m = int(container["resources"]["requests"]["cpu"].removesuffix("m"))
    # One process cannot use more than a core.
    assert request_m * metric["resource"]["target"]["averageUtilization"] / 100 < 1000


def test_a_rollout_completes_while_kafka_is_out(container):
    paths = {container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"/live"}


def test_pods_are_spread_over_nodes_and_zones(pod):
    keys = [each["topologyKey"] for each in pod["topologySpreadConstraints"]]
    assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]


def test_only_chosen_namespaces_reach_the_service(manifests):
    (policy,) = of_kind(manifests, "NetworkPolicy")
    assert all(rule["from"] for rule in policy["spec"]["ingress"])


def test_every_port_that_is_named_is_one_that_the_service_listens_on(manifests, container, variables):
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listening = {int(variables[name].split(":")[1]) for name in ("SAMPLEAPP_LISTEN", "SAMPLEAPP_ADMIN")}
    assert set(ports.values()) == listening
    targets = {
        port["targetPort"] for service in of_kind(manifests, "Service") for port in service["spec"]["ports"]
    }
    (policy,) = of_kind(manifests, "NetworkPolicy")
    allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    probed = {container[f"{name}Probe"]["httpGet"]["port"] for name in ("startup", "liveness", "readiness")}
    assert targets == allowed == set(ports)
    assert probed == {"admin"}


def test_every_file_that_is_named_is_in_a_directory_that_is_mounted(container, variables):
    files = re.findall(r"/etc/[\w./-]+", " ".join(variables.values()))
    assert len(files) == 5
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {file.rpartition("/")[0] for file in files} == mounted
    # A file that is mounted by itself is never replaced.
    assert not any("subPath" in mount for mount in container["volumeMounts"])
    # The kubelet makes directories that every user may write to: their files must be read-only.
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


def test_a_pod_has_the_time_that_it_takes_to_end(pod, variables):
    delay_s, drain_s = float(variables["SAMPLEAPP_DRAIN_DELAY"]), float(variables["SAMPLEAPP_DRAIN_TIMEOUT"])
    assert pod["terminationGracePeriodSeconds"] >= delay_s + drain_s + 8


def test_a_pod_has_no_rights_that_it_does_not_need(pod, container):
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
