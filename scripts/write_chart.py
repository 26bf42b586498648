"""Writes the templates of the Helm chart from the plain Kubernetes manifests, which stay the only place to edit.

Each manifest becomes a template by replacing what an installation chooses with a value of the chart. `make docs` runs
this; tests compare the templates with the manifests, and what Helm renders with what kustomize would apply.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
KUBERNETES: Final = ROOT / "deploy/kubernetes"
CHART: Final = ROOT / "deploy/helm/boathook"
HEADER: Final = "{{- /* Written by `make docs`; edit {origin} instead. */ -}}\n"

Rule = tuple[str, str]
"""A regular expression that must match, and its replacement."""

METADATA: Final = (
    r"^metadata:\n  name: (.+)$",
    'metadata:\n  name: \\1\n  labels:\n    {{- include "boathook.labels" . | nindent 4 }}',
)
IMAGE: Final = (r"image: \S*boathook\S*$", 'image: {{ include "boathook.image" . }}')
SECRET: Final = (r"secretName: boathook$", "secretName: {{ .Values.secretName }}")


def workload(name: str) -> Sequence[Rule]:
    """Return the rules for a StatefulSet or Deployment whose values are below *name*."""
    return (
        METADATA,
        IMAGE,
        SECRET,
        (r"^  replicas: \d+$", f"  replicas: {{{{ .Values.{name}.replicas }}}}"),
        (
            r"^  template:\n    metadata:\n",
            """  template:
    metadata:
      annotations:
        checksum/settings: {{ .Values.settings | sha256sum }}
""",
        ),
        (
            r"^          resources:\n(?:            .*\n)+",
            f"          resources:\n            {{{{- toYaml .Values.{name}.resources | nindent 12 }}}}\n",
        ),
    )


STORAGE: Final = (r"storage: \w+$", "storage: {{ .Values.gateway.storage }}")
TEMPLATES: Final[dict[str, Sequence[Rule]]] = {
    "base/service-account.yaml": [METADATA],
    "base/gateway.yaml": [*workload("gateway"), STORAGE],
    "base/worker.yaml": workload("worker"),
    "base/console.yaml": workload("console"),
    "base/services.yaml": [METADATA],
    "base/disruption.yaml": [METADATA],
    "base/network.yaml": [
        METADATA,
        (r'values: \["ingress-nginx".*\]$', "values: {{ toJson .Values.network.callers }}"),
        (r"cidr: 10\.0\.0\.0/8$", "cidr: {{ .Values.network.database }}"),
    ],
    "example/ingress.yaml": [
        METADATA,
        (r"\A", "{{- if .Values.ingress.enabled }}\n"),
        (r"\Z", "{{- end }}\n"),
        (
            r"^  annotations:\n(?:    .*\n)+",
            "  annotations:\n    {{- toYaml .Values.ingress.annotations | nindent 4 }}\n",
        ),
        (r"ingressClassName: .+$", "ingressClassName: {{ .Values.ingress.className }}"),
        (r'hosts: \["hooks.example.com"\]$', "hosts: [{{ .Values.ingress.host | quote }}]"),
        (r"host: hooks.example.com$", "host: {{ .Values.ingress.host | quote }}"),
        (r"secretName: hooks-example-com$", "secretName: {{ .Values.ingress.tlsSecret }}"),
        (
            r"^          - path: /webhooks\n            pathType: Prefix\n((?:            .*\n)+)",
            r"""          {{- range .Values.ingress.paths }}
          - path: {{ . }}
            pathType: Prefix
\1          {{- end }}
""",
        ),
    ],
    "example/migrate.yaml": [
        IMAGE,
        SECRET,
        (
            r"^metadata:\n  generateName: boathook-migrate-$",
            """metadata:
  name: boathook-migrate
  labels:
    {{- include "boathook.labels" . | nindent 4 }}
  annotations:
    helm.sh/hook: pre-upgrade
    helm.sh/hook-delete-policy: before-hook-creation""",
        ),
        (r"^# Brings the schema .*\n#.*\n", "# Brings the schema up to date before an upgrade replaces pods.\n"),
    ],
}
"""What is replaced in each manifest."""


def templates() -> Iterator[tuple[Path, str]]:
    """Yield the path and text of each template of the chart.

    Raises:
        ValueError: a manifest has nothing that a rule replaces; adapt the rule.
    """
    for name, rules in TEMPLATES.items():
        text = (KUBERNETES / name).read_text(encoding="utf-8")
        for pattern, replacement in rules:
            text, number = re.subn(pattern, replacement, text, flags=re.MULTILINE)
            if number == 0:
                raise ValueError(f"{name}: nothing matches {pattern!r}")
        origin = f"deploy/kubernetes/{name}"
        yield CHART / "templates" / Path(name).name, HEADER.replace("{origin}", origin) + text


if __name__ == "__main__":
    for path, text in templates():
        path.write_text(text, encoding="utf-8")
