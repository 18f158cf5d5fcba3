package api

import (
	"net/http"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
)

var effectStates = []string{string(holdpoint.EffectPending), string(holdpoint.EffectSending), string(holdpoint.EffectCompleted),
	string(holdpoint.EffectUnknown), string(holdpoint.EffectFailed)}

// The answers of calls about effects, switches and connectors.
type (
	effectAnswer struct {
		Effect holdpoint.Effect `json:"effect"`
	}
	connectorsAnswer struct {
		Connectors []engine.ConnectorView `json:"connectors"`
	}
	releaseAnswer struct {
		Connector string `json:"connector"`
		Released  int    `json:"released"` // effects that may go on
	}
	nothing struct{}
)

func effectRoutes() []route {
	effect := map[int]any{http.StatusOK: effectAnswer{}}
	return []route{
		{pattern: "GET /v1/effects", id: "listEffects", summary: "List effects, newest first.", serve: listEffects, answers: map[int]any{http.StatusOK: engine.EffectPage{}},
			query: append([]param{{name: "state", allowed: effectStates}, {name: "held", about: "only pending effects under a hold", allowed: []string{"true", "false"}},
				{name: "run_id"}}, paging...)},
		{pattern: "GET /v1/effects/{id}", id: "getEffect", summary: "One effect with its attempts; content for those who may see it.", serve: getEffect,
			answers: map[int]any{http.StatusOK: engine.EffectView{}}, codes: notFound},
		with(route{pattern: "POST /v1/effects/{id}/cancel", id: "cancelEffect", summary: "End an effect that has not begun.", answers: effect, codes: moveCodes}, cancelEffect),
		with(route{pattern: "POST /v1/effects/{id}/reconcile", id: "reconcileEffect", summary: "Look an unknown effect up at its provider now; sends nothing.",
			optional: true, answers: effect, codes: []holdpoint.Code{holdpoint.CodeInvalidPolicy, holdpoint.CodeNotFound, holdpoint.CodeNotAllowedNow}}, reconcile),
		with(route{pattern: "POST /v1/effects/{id}/resolve", id: "resolveEffect", summary: "Record what is true about an unknown effect.", answers: effect, codes: moveCodes}, resolve),
	}
}

func listEffects(c *call) (answer, error) {
	page, err := c.engine().Effects(c.ctx, c.actor, engine.EffectQuery{State: holdpoint.EffectState(c.query["state"]), Held: c.query["held"] == "true",
		RunID: c.query["run_id"], Cursor: c.query["cursor"], Limit: c.number("limit")})
	return ok(page), err
}

func getEffect(c *call) (answer, error) {
	v, err := c.engine().Effect(c.ctx, c.actor, c.path("id"))
	return ok(v), err
}

func cancelEffect(c *call, r reasonRequest) (answer, error) {
	x, err := c.engine().CancelEffect(c.ctx, c.actor, c.path("id"), r.Reason)
	return ok(effectAnswer{x}), err
}

func reconcile(c *call, _ nothing) (answer, error) {
	x, err := c.engine().Reconcile(c.ctx, c.actor, c.path("id"))
	return ok(effectAnswer{x}), err
}

func resolve(c *call, r engine.Resolution) (answer, error) {
	x, err := c.engine().Resolve(c.ctx, c.actor, c.path("id"), r)
	return ok(effectAnswer{x}), err
}

func switchRoutes() []route {
	return []route{
		{pattern: "GET /v1/switches", id: "getSwitches", summary: "The switches and what is in flight.", serve: getSwitches,
			answers: map[int]any{http.StatusOK: engine.SwitchState{}}},
		with(route{pattern: "PUT /v1/switches/{scope}", id: "setSwitch", summary: "Turn a switch on or off: global, tenant, messages, workflow:NAME, connector:NAME or type:NAME.",
			answers: map[int]any{http.StatusOK: engine.SwitchAnswer{}}, codes: []holdpoint.Code{holdpoint.CodeReasonRequired}}, setSwitch),
		{pattern: "GET /v1/connectors", id: "listConnectors", summary: "The connectors of the active policy as they stand on this replica.", serve: listConnectors,
			answers: map[int]any{http.StatusOK: connectorsAnswer{}}, codes: activeCodes},
		with(route{pattern: "POST /v1/connectors/{name}/release", id: "releaseConnector", summary: "Lift a connector's holds after mending what caused them.",
			optional: true, answers: map[int]any{http.StatusOK: releaseAnswer{}},
			codes: append(activeCodes, holdpoint.CodeNotFound, holdpoint.CodeNotAllowedNow)}, releaseConnector),
	}
}

func getSwitches(c *call) (answer, error) {
	s, err := c.engine().Switches(c.ctx, c.actor)
	return ok(s), err
}

func setSwitch(c *call, r engine.SwitchRequest) (answer, error) {
	s, err := c.engine().SetSwitch(c.ctx, c.actor, c.path("scope"), r)
	return ok(s), err
}

func listConnectors(c *call) (answer, error) {
	all, err := c.engine().Connectors(c.ctx, c.actor)
	return ok(connectorsAnswer{all}), err
}

func releaseConnector(c *call, _ nothing) (answer, error) {
	n, err := c.engine().ReleaseConnector(c.ctx, c.actor, c.path("name"))
	return ok(releaseAnswer{c.path("name"), n}), err
}
