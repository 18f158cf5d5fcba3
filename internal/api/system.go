package api

import (
	"encoding/json"
	"net/http"

	"github.com/holdpoint/holdpoint"
)

type statusAnswer struct {
	Status string `json:"status"`
}

func systemRoutes() []route {
	return []route{
		{pattern: "GET /openapi.json", id: "getOpenAPI", summary: "This document.", open: true, serve: getOpenAPI, answers: map[int]any{http.StatusOK: json.RawMessage{}}},
		{pattern: "GET /healthz", id: "getHealth", summary: "Whether this process lives.", open: true, serve: getHealth, answers: map[int]any{http.StatusOK: statusAnswer{}}},
		{pattern: "GET /readyz", id: "getReadiness", summary: "Whether this replica can serve: its store answers and its secrets are there.", open: true, serve: getReadiness,
			answers: map[int]any{http.StatusOK: statusAnswer{}}, codes: []holdpoint.Code{holdpoint.CodeUnavailable}},
	}
}

func getOpenAPI(*call) (answer, error) { return ok(json.RawMessage(document)), nil }

func getHealth(*call) (answer, error) { return ok(statusAnswer{"ok"}), nil }

// getReadiness tells the log why, and a caller without a token only that it is so.
func getReadiness(c *call) (answer, error) {
	if err := c.engine().Ready(c.ctx); err != nil {
		return answer{}, holdpoint.Errorf(holdpoint.CodeUnavailable, "This replica is not ready; its log says why.").Wrap(err)
	}
	return ok(statusAnswer{"ready"}), nil
}
