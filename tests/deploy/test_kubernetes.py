"""The manifests are what Kubernetes takes, and fit the service."""

from __future__ import annotations

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
    assert sorted(path.name for path in directory.glob("*.yaml")) == sorted([*named, "kustomization.yaml"])
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
