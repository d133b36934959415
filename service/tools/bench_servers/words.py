"""FastAPI with TF-IDF and logistic regression. Run as `python words.py PORT TICKETS`.

TICKETS is a JSON file of [[text, team], …] to train on.
"""

import json
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline


class Ticket(BaseModel):
    ticket_id: str | None = None
    text: str


texts, teams = zip(*json.loads(Path(sys.argv[2]).read_text()), strict=True)
model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=200))
model.fit(texts, teams)
app = FastAPI()


@app.post("/route")
async def route(ticket: Ticket) -> dict[str, object]:
    p = model.predict_proba([ticket.text])[0]
    best = int(p.argmax())
    return {"team": str(model.classes_[best]), "confidence": float(p[best]), "probabilities": p.tolist()}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="critical", access_log=False)
