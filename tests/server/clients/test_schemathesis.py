"""The document of the service is OpenAPI, and whatever is made of it is answered as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from aiohttp import ClientSession
from msgspec.structs import replace

from epe.families import family
from tests.server.clients.conftest import HERE, Folder, run_with
from tests.server.conftest import Serving

pytestmark = pytest.mark.clients

VALIDATE = (
    "import json, sys; from openapi_spec_validator import validate; validate(json.load(open(sys.argv[1])))"
)
RUN = "from schemathesis.cli import schemathesis; schemathesis()"


async def test_the_document_is_valid_openapi_3_1(
    client: ClientSession, client_folder: Folder, tmp_path: Path
) -> None:
    async with client.get("/openapi.json") as response:
        document = await response.json()
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(document))
    code, said = await run_with(client_folder("schemathesis"), "-c", VALIDATE, str(path))
    assert code == 0, said


async def test_no_request_that_can_be_made_of_the_document_has_an_answer_that_is_not_in_it(
    serving: Serving, client_folder: Folder
) -> None:
    """With all checks: no 5xx, no undocumented status, header, type or body; what is wrong is refused, what is right is
    not, and so is a method that is none. A stream of events has no end, so it is left out."""
    # Pictures are small, since their making is not what is tried here.
    zimage = family("zimage")
    small = replace(zimage, max_side=128, defaults=replace(zimage.defaults, height=64, width=64))
    options = ("--checks", "all", "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "10")
    async with serving(family=small) as client:
        code, said = await run_with(
            client_folder("schemathesis"),
            "-c",
            RUN,
            *("--config-file", str(HERE / "schemathesis.toml")),
            *("run", f"{client._base_url}/openapi.json", "--seed", "1", "--exclude-path", "/v1/events"),
            *options,
        )
    assert code == 0, said
    assert re.search(r"(\d{3,}) generated, \1 passed", said), said
