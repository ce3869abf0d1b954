"""What can happen: the vocabulary of the log, strict values, and the chain that seals it. Pure."""

from limpet.events.chain import GENESIS, START, Event, Head, Sealed, seal, seal_all, verify
from limpet.events.codec import PLAIN, Codec, Packed, Plain
from limpet.events.parts import (
    Artifact,
    Constraints,
    Effects,
    Fact,
    Failure,
    HumanInTheLoop,
    Limits,
    Lineage,
    PlanItem,
    PlanStatus,
    Revision,
    Spent,
    StatePatch,
    Wait,
)
from limpet.events.references import blobs_of
from limpet.events.values import Payload, canonical, digest, inline, parse
from limpet.events.vocabulary import KINDS, VOCABULARY, AnyBody, Kind, Vocabulary, Writer

__all__ = [
    "GENESIS",
    "KINDS",
    "PLAIN",
    "START",
    "VOCABULARY",
    "AnyBody",
    "Artifact",
    "Codec",
    "Constraints",
    "Effects",
    "Event",
    "Fact",
    "Failure",
    "Head",
    "HumanInTheLoop",
    "Kind",
    "Limits",
    "Lineage",
    "Packed",
    "Payload",
    "Plain",
    "PlanItem",
    "PlanStatus",
    "Revision",
    "Sealed",
    "Spent",
    "StatePatch",
    "Vocabulary",
    "Wait",
    "Writer",
    "blobs_of",
    "canonical",
    "digest",
    "inline",
    "parse",
    "seal",
    "seal_all",
    "verify",
]
