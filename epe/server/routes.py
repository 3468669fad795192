"""The table of all routes."""

from __future__ import annotations

from epe.messages import RankStatus
from epe.server.events import get_events
from epe.server.fetch import get_result
from epe.server.health import Alive, Health, Model, ModelList, get_health, get_livez, get_model, list_models
from epe.server.image_body import ImageBody, PlanBody
from epe.server.images import create_images, refuse_edits
from epe.server.live import LIMIT, LiveList, list_requests
from epe.server.metrics import get_metrics
from epe.server.openapi import Document, get_document
from epe.server.page import ASSET_TYPES, PAGE_TYPES, get_asset, get_page
from epe.server.plan import PlanReply, plan_images
from epe.server.ranks import (
    AllRanksOrder,
    RankList,
    RankOrder,
    list_ranks,
    operate_rank,
    restart_ranks,
)
from epe.server.reply import ImagesReply
from epe.server.requests import (
    JobReply,
    create_request,
    delete_request,
    get_content,
    get_request,
)
from epe.server.route import Answer, Route
from epe.server.sse import EVENT_STREAM
from epe.server.video_body import VideoBody
from epe.server.videos import (
    MAX_LISTED,
    DeletedVideo,
    Video,
    VideoList,
    create_video,
    delete_video,
    get_video,
    get_video_content,
    list_videos,
)

# What may happen to a body, before anybody knows what it says.
_BODY = (400, 408, 413, 415)
# What may happen to work that was asked for.
_WORK = (404, 410, 429, 500, 503, 504)
_VIDEO_FILES = ("video/mp4", "video/webm", "image/webp")
_PICTURES = ("image/png", "image/jpeg", "image/webp")

ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/images/generations",
        create_images,
        "Draw pictures of a prompt",
        {200: Answer("the finished pictures", ImagesReply, others=(EVENT_STREAM,))},
        errors=_BODY + _WORK,
        body=ImageBody,
    ),
    Route(
        "POST",
        "/v1/plan",
        plan_images,
        "Say what pictures would cost and when they would end, without drawing them",
        {200: Answer("the plan", PlanReply)},
        errors=(*_BODY, 404, 429, 503),
        body=PlanBody,
    ),
    Route(
        "GET",
        "/v1/requests",
        list_requests,
        "List what is in work and what waits",
        {200: Answer("the first of them", LiveList)},
        errors=(400,),
        query={"limit": LIMIT},
    ),
    Route(
        "GET",
        "/v1/events",
        get_events,
        "Watch what goes on, as server-sent events",
        {200: Answer("events until somebody hangs up", others=(EVENT_STREAM,))},
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
        "Say how far a request is, and what became of a kept one",
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
        "End a request, or forget a kept one that has ended",
        {200: Answer("the request as it is now; one that is kept no longer is forgotten", JobReply)},
        errors=(404, 503),
    ),
    Route(
        "POST",
        "/v1/videos",
        create_video,
        "Have a video drawn",
        {200: Answer("the video as it is now", Video)},
        errors=_BODY + _WORK,
        body=VideoBody,
        forms=True,
    ),
    Route(
        "GET",
        "/v1/videos",
        list_videos,
        "List the videos that are kept",
        {200: Answer("a page of them", VideoList)},
        errors=(400, 503),
        query={"limit": (1, MAX_LISTED)},
    ),
    Route(
        "GET",
        "/v1/videos/{id}",
        get_video,
        "Say how far a video is, and what became of it",
        {200: Answer("the video as it is now", Video)},
        errors=(404, 503),
    ),
    Route(
        "GET",
        "/v1/videos/{id}/content",
        get_video_content,
        "Fetch the file of a video, or its thumbnail",
        {200: Answer("the file", others=_VIDEO_FILES), 206: Answer("a part of it", others=_VIDEO_FILES)},
        errors=(400, 404, 410, 416, 500, 503, 504),
    ),
    Route(
        "DELETE",
        "/v1/videos/{id}",
        delete_video,
        "Forget a video, and stop drawing it first",
        {200: Answer("it is forgotten", DeletedVideo)},
        errors=(404, 503),
    ),
    Route(
        "GET",
        "/v1/ranks",
        list_ranks,
        "List the ranks, and how far a restart of them is",
        {200: Answer("the ranks", RankList)},
    ),
    Route(
        "POST",
        "/v1/ranks",
        restart_ranks,
        "Restart all ranks, one after the other",
        {202: Answer("the restart has begun", RankList)},
        errors=(*_BODY, 409, 503),
        body=AllRanksOrder,
    ),
    Route(
        "POST",
        "/v1/ranks/{rank}",
        operate_rank,
        "Cordon, drain or readmit a rank",
        {200: Answer("the rank as it is now", RankStatus)},
        errors=(*_BODY, 404, 409, 503),
        body=RankOrder,
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
        "/metrics",
        get_metrics,
        "Say in numbers how the service fares, for Prometheus",
        {200: Answer("the metrics", others=("text/plain",))},
    ),
    Route(
        "GET",
        "/",
        get_page,
        "Look at the service: a page for a browser",
        {200: Answer("the page", others=PAGE_TYPES)},
        guarded=False,
    ),
    Route(
        "GET",
        "/page/{name}",
        get_asset,
        "Fetch a file that the page is made of",
        {200: Answer("the file", others=ASSET_TYPES)},
        errors=(404,),
        guarded=False,
    ),
    Route(
        "GET",
        "/openapi.json",
        get_document,
        "Describe all of this, as OpenAPI 3.1",
        {200: Answer("the document", Document)},
    ),
)
