"""The table of all routes."""

from __future__ import annotations

from epe.server.fetch import get_result
from epe.server.health import Alive, Health, Model, ModelList, get_health, get_livez, get_model, list_models
from epe.server.image_body import ImageBody
from epe.server.images import create_images, refuse_edits
from epe.server.openapi import Document, get_document
from epe.server.reply import ImagesReply
from epe.server.requests import (
    JobReply,
    create_request,
    delete_request,
    get_content,
    get_request,
)
from epe.server.route import Answer, Route

# What may happen to a body, before anybody knows what it says.
_BODY = (400, 408, 413, 415)
# What may happen to work that was asked for.
_WORK = (404, 429, 500, 503, 504)
_PICTURES = ("image/png", "image/jpeg", "image/webp")

ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/images/generations",
        create_images,
        "Draw pictures of a prompt",
        {200: Answer("the finished pictures", ImagesReply)},
        errors=_BODY + _WORK,
        body=ImageBody,
    ),
    *(
        Route(
            "POST",
            path,
            refuse_edits,
            "Change a picture: refused, since no family here takes one",
            {},
            errors=(400,),
            any_body=True,
        )
        for path in ("/v1/images/edits", "/v1/images/variations")
    ),
    Route(
        "GET",
        "/v1/results/{name}",
        get_result,
        "Fetch a file by the address in a reply",
        {200: Answer("the file", others=_PICTURES)},
        errors=(404,),
        guarded=False,
    ),
    Route(
        "POST",
        "/v1/requests",
        create_request,
        "Have pictures drawn and kept, whether or not their client waits",
        {
            200: Answer("what became of the request that came with this key before", JobReply),
            202: Answer("it was taken, and is kept", JobReply),
        },
        errors=_BODY + _WORK,
        body=ImageBody,
    ),
    Route(
        "GET",
        "/v1/requests/{id}",
        get_request,
        "Say how far a kept request is, and what became of it",
        {200: Answer("the request as it is now", JobReply)},
        errors=(404, 503),
    ),
    Route(
        "GET",
        "/v1/requests/{id}/content",
        get_content,
        "Fetch a picture of a kept request",
        {200: Answer("the file", others=_PICTURES)},
        errors=(400, 404, 409, 410, 500, 503, 504),
        query={"index": (0, 9)},
    ),
    Route(
        "DELETE",
        "/v1/requests/{id}",
        delete_request,
        "End a kept request, or forget one that has ended",
        {200: Answer("the request as it is now; one that had ended before is forgotten", JobReply)},
        errors=(404, 503),
    ),
    Route(
        "GET",
        "/v1/models",
        list_models,
        "List the names of the model",
        {200: Answer("the names", ModelList)},
    ),
    Route(
        "GET",
        "/v1/models/{model}",
        get_model,
        "Say whether a model is served",
        {200: Answer("it is", Model)},
        errors=(404,),
    ),
    Route(
        "GET",
        "/livez",
        get_livez,
        "Say that the process answers",
        {200: Answer("it does", Alive)},
        guarded=False,
    ),
    *(
        Route(
            "GET",
            path,
            get_health,
            "Say how the service fares",
            {
                200: Answer("requests are taken", Health),
                503: Answer("they are not, with the reason", Health),
            },
        )
        for path in ("/health", "/readyz")
    ),
    Route(
        "GET",
        "/openapi.json",
        get_document,
        "Describe all of this, as OpenAPI 3.1",
        {200: Answer("the document", Document)},
    ),
)
