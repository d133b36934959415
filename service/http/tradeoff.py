"""`GET /tradeoff`: the trade-off between precision and coverage of the served bundle."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request

from models.bundle import BundleConfig
from models.tradeoff import REVIEWED_PER_HOUR
from service.api.schema import PrecisionChoice, TeamThreshold, TradeoffResponse
from service.http.routes import problem_responses, service_of
from service.inference.service import Service

router = APIRouter()


@router.get(
    "/tradeoff",
    summary="The trade-off between precision and coverage",
    tags=["operation"],
    response_model=TradeoffResponse,
    responses=problem_responses(401, 503),
)
async def tradeoff(request: Request) -> TradeoffResponse:
    """The precision in use, the threshold of each team, and the coverage at other precisions."""
    runtime = await service_of(request).first_loaded()
    return of_bundle(runtime.config)


def of_bundle(config: BundleConfig) -> TradeoffResponse:
    """The trade-off of a bundle; a bundle of schema version 1 has a threshold only."""
    thresholds, held = config.thresholds, config.tradeoff
    chosen = held.choice(thresholds.precision) if held else None
    figures = chosen if chosen is not None and chosen.score is not None else None
    return TradeoffResponse(
        precision=thresholds.precision,
        tickets=held.tickets if held else None,
        caution=held.caution(thresholds.precision) if held else "",
        reviewed_per_hour=REVIEWED_PER_HOUR,
        choices=[
            PrecisionChoice(
                precision=choice.precision,
                coverage=choice.coverage,
                at_least=choice.at_least,
                wrong_per_hour=round(choice.doubtful * REVIEWED_PER_HOUR, 2),
            )
            for choice in (held.shown if held else [])
        ],
        teams=[
            TeamThreshold(
                team=team,
                threshold=thresholds.of(place),
                tickets=held.team_tickets[place] if held else None,
                routed=figures.team_routed[place] if figures else None,
                at_least=figures.team_at_least[place] if figures else None,
            )
            for place, team in enumerate(config.teams)
        ],
    )


def install(app: FastAPI, _: Service) -> None:
    """Add the endpoint. It shows team names, so it needs a key if routing does."""
    app.include_router(router)
