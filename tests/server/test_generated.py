"""Requests generated from the document, good and bad: none is a fault of ours, all keep to it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from firsthand.observe.metrics import Metrics
from firsthand.server.app import BODIES, build_app, build_routes
from firsthand.server.house import House
from firsthand.server.openapi import document
from tests.server.fakes import FakeService

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        negative_data_rejection,
        response_schema_conformance,
        status_code_conformance,
    )

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Skipped test cases with unsupported payload:UserWarning"),
]

HOUSE = House({"micro": FakeService()}, Metrics())
schema = schemathesis.openapi.from_dict(document(build_routes(HOUSE), BODIES))
schema.app = build_app(HOUSE)


def keeps_to_the_document(case: schemathesis.Case[Any]) -> None:
    """A body that is too large is refused before its fields are looked at."""
    response = case.call()
    checks = [
        schemathesis.checks.not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
        *([] if response.status_code == 413 else [negative_data_rejection]),
    ]
    case.validate_response(response, checks=checks)


@schema.parametrize()
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_s_41_generated_requests(case: schemathesis.Case[Any]) -> None:
    keeps_to_the_document(case)


@pytest.mark.soak
@schema.parametrize()
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_s_41_g7_many_generated_requests(case: schemathesis.Case[Any]) -> None:
    """Others in each run."""
    keeps_to_the_document(case)
