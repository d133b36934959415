"""The floor: FastAPI that answers a constant. Run as `python floor.py PORT`."""

import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.post("/route")
async def route() -> dict[str, str]:
    return {"team": "payment"}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="critical", access_log=False)
