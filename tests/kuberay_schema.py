"""What KubeRay 1.5 takes as a RayService, down to its pod templates, which are those of Kubernetes:
fields and types of its custom resource definition, without those that are deprecated.
"""

from __future__ import annotations

from typing import Any

TEXT, FLAG, COUNT = {"type": "string"}, {"type": "boolean"}, {"type": "integer", "minimum": 0}
ANY_OBJECT = {"type": "object"}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def fields(*required: str, **known: Any) -> dict[str, Any]:
    """An object of known fields alone."""
    shape = {"type": "object", "properties": known, "additionalProperties": False}
    return shape | {"required": list(required)}


def choice(*values: str) -> dict[str, Any]:
    """One of some words."""
    return {"enum": list(values)}


POD_TEMPLATE = fields("spec", metadata=ANY_OBJECT, spec=ANY_OBJECT)
HEAD = fields(
    "template",
    enableIngress=FLAG,
    headService=ANY_OBJECT,
    labels=TEXTS,
    rayStartParams=TEXTS,
    resources=TEXTS,
    serviceType=choice("ClusterIP", "NodePort", "LoadBalancer"),
    template=POD_TEMPLATE,
)
WORKERS = fields(
    "groupName",
    "minReplicas",
    "maxReplicas",
    "template",
    groupName=TEXT,
    idleTimeoutSeconds=COUNT,
    labels=TEXTS,
    maxReplicas=COUNT,
    minReplicas=COUNT,
    numOfHosts=COUNT,
    rayStartParams=TEXTS,
    replicas=COUNT,
    resources=TEXTS,
    scaleStrategy=ANY_OBJECT,
    suspend=FLAG,
    template=POD_TEMPLATE,
)
CLUSTER = fields(
    "headGroupSpec",
    authOptions=fields(mode=choice("disabled", "token")),
    autoscalerOptions=ANY_OBJECT,
    enableInTreeAutoscaling=FLAG,
    gcsFaultToleranceOptions=ANY_OBJECT,
    headGroupSpec=HEAD,
    headServiceAnnotations=TEXTS,
    managedBy=TEXT,
    rayVersion=TEXT,
    suspend=FLAG,
    workerGroupSpecs={"type": "array", "items": WORKERS},
)
RAY_SERVICE = fields(
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    apiVersion=choice("ray.io/v1"),
    kind=choice("RayService"),
    metadata=ANY_OBJECT,
    spec=fields(
        "rayClusterConfig",
        excludeHeadPodFromServeSvc=FLAG,
        rayClusterConfig=CLUSTER,
        rayClusterDeletionDelaySeconds=COUNT,
        serveConfigV2=TEXT,
        serveService=fields(metadata=ANY_OBJECT, spec=ANY_OBJECT),
        upgradeStrategy=ANY_OBJECT,
    ),
)
