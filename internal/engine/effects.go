package engine

import (
	"context"
	"strings"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// EffectQuery selects effects; empty fields select all. Held selects pending effects under any hold.
type EffectQuery struct {
	State  holdpoint.EffectState
	Held   bool
	RunID  string
	Cursor string
	Limit  int
}

// EffectPage is one page of effects, newest first.
type EffectPage struct {
	Effects []holdpoint.Effect `json:"effects"`
	Next    string             `json:"next_cursor,omitempty"`
}

// Effects lists effects.
func (e *Engine) Effects(ctx context.Context, a holdpoint.Actor, q EffectQuery) (EffectPage, error) {
	if err := permit(a, holdpoint.ActionEffectView); err != nil {
		return EffectPage{}, err
	}
	rows, next, err := e.store.FindEffects(ctx, store.EffectFilter{Tenant: a.Tenant, RunID: q.RunID, State: q.State, Held: q.Held, Cursor: q.Cursor, Limit: q.Limit})
	return EffectPage{rows, next}, err
}

// Effect gives one effect with its attempts, and its content for those who may see it.
func (e *Engine) Effect(ctx context.Context, a holdpoint.Actor, id string) (EffectView, error) {
	if err := permit(a, holdpoint.ActionEffectView); err != nil {
		return EffectView{}, err
	}
	x, _, err := e.store.EffectByID(ctx, a.Tenant, id)
	if err != nil {
		return EffectView{}, err
	}
	run, err := e.Run(ctx, a, x.RunID)
	if err != nil {
		return EffectView{}, err
	}
	for _, v := range run.Effects {
		if v.ID == id {
			return v, nil
		}
	}
	return EffectView{}, holdpoint.Errorf(holdpoint.CodeNotFound, "there is no effect %s in this tenant", id)
}

// effectBox finds an effect and the box of its run.
func (e *Engine) effectBox(ctx context.Context, tenant, id string) (holdpoint.Effect, box, error) {
	x, _, err := e.store.EffectByID(ctx, tenant, id)
	if err != nil {
		return x, box{}, err
	}
	b, err := e.boxOf(ctx, tenant, x.RunID)
	return x, b, err
}

// CancelEffect ends an effect that has not begun.
func (e *Engine) CancelEffect(ctx context.Context, a holdpoint.Actor, id, reason string) (holdpoint.Effect, error) {
	if err := permit(a, holdpoint.ActionEffectCancel); err != nil {
		return holdpoint.Effect{}, err
	}
	_, b, err := e.effectBox(ctx, a.Tenant, id)
	if err != nil {
		return holdpoint.Effect{}, err
	}
	text, err := reasonText(b, "effect-reason:"+id, reason)
	if err != nil {
		return holdpoint.Effect{}, err
	}
	s, err := e.store.CancelEffect(ctx, a.Tenant, id, text, who(a))
	return s.Effect, err
}

// Reconcile makes the look-up of an unknown effect due now; not_allowed_now if its connector has none.
func (e *Engine) Reconcile(ctx context.Context, a holdpoint.Actor, id string) (holdpoint.Effect, error) {
	if err := permit(a, holdpoint.ActionEffectReconcile); err != nil {
		return holdpoint.Effect{}, err
	}
	x, _, err := e.store.EffectByID(ctx, a.Tenant, id)
	if err != nil {
		return x, err
	}
	p, err := e.policies.active(ctx, a.Tenant)
	if err != nil {
		return x, err
	}
	if c := p.Connectors[x.Connector]; c == nil || c.Lookup == nil {
		return x, holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "connector %s has no look-up; find out at the provider by the reference, then resolve the effect as sent, not_sent or abandon", x.Connector)
	}
	return e.store.ScheduleLookup(ctx, a.Tenant, id, who(a))
}

// Resolution is an operator's word about an unknown effect.
type Resolution struct {
	Verdict    holdpoint.Verdict `json:"verdict"`
	ProviderID string            `json:"provider_id,omitempty"`
	Reason     string            `json:"reason"`
}

// Resolve records what is true about an unknown effect.
func (e *Engine) Resolve(ctx context.Context, a holdpoint.Actor, id string, r Resolution) (holdpoint.Effect, error) {
	if err := permit(a, holdpoint.ActionEffectResolve); err != nil {
		return holdpoint.Effect{}, err
	}
	switch {
	case r.Verdict != holdpoint.VerdictSent && r.Verdict != holdpoint.VerdictNotSent && r.Verdict != holdpoint.VerdictAbandon:
		return holdpoint.Effect{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "verdict is sent, not_sent or abandon")
	case r.Verdict != holdpoint.VerdictSent && r.ProviderID != "":
		return holdpoint.Effect{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "provider_id goes with the verdict sent only")
	case len(r.ProviderID) > 255:
		return holdpoint.Effect{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "provider_id has at most 255 bytes")
	}
	_, b, err := e.effectBox(ctx, a.Tenant, id)
	if err != nil {
		return holdpoint.Effect{}, err
	}
	text, err := reasonText(b, "effect-reason:"+id, r.Reason)
	if err != nil {
		return holdpoint.Effect{}, err
	}
	s, err := e.store.ResolveEffect(ctx, store.EffectVerdict{Tenant: a.Tenant, EffectID: id, Verdict: r.Verdict, ProviderID: r.ProviderID, ReasonText: text, Who: who(a)})
	return s.Effect, err
}

// SwitchState is what the switches say: the environment, each stored scope and what is in flight.
type SwitchState struct {
	Enabled  bool                `json:"ai_actions_enabled"`
	Switches []holdpoint.Switch  `json:"switches"`
	InFlight []holdpoint.Attempt `json:"in_flight"`
}

// Switches reads the switches.
func (e *Engine) Switches(ctx context.Context, a holdpoint.Actor) (SwitchState, error) {
	if err := permit(a, holdpoint.ActionSwitchView); err != nil {
		return SwitchState{}, err
	}
	s := SwitchState{Enabled: e.enabled}
	var err error
	if s.Switches, err = e.store.Switches(ctx, a.Tenant); err != nil {
		return s, err
	}
	s.InFlight, err = e.store.InFlight(ctx, a.Tenant)
	return s, err
}

// SwitchRequest turns a switch on or off, with a reason.
type SwitchRequest struct {
	On     *bool  `json:"on"`
	Reason string `json:"reason"`
}

// SwitchAnswer is the switch as it stands and what had begun before the flip.
type SwitchAnswer struct {
	holdpoint.Switch
	InFlight []holdpoint.Attempt `json:"in_flight"`
}

// SetSwitch flips one scope of the kill switch. After it returns, nothing begins under the old value.
func (e *Engine) SetSwitch(ctx context.Context, a holdpoint.Actor, scope string, r SwitchRequest) (SwitchAnswer, error) {
	o := holdpoint.Object{Tenant: a.Tenant, Switch: scope, SoleTenant: e.soleTenant(ctx)}
	if err := holdpoint.Permit(a, holdpoint.ActionSwitchSet, o).Err(); err != nil {
		return SwitchAnswer{}, err
	}
	if r.On == nil {
		return SwitchAnswer{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "send on: true or on: false")
	}
	if strings.TrimSpace(r.Reason) == "" {
		return SwitchAnswer{}, holdpoint.Errorf(holdpoint.CodeReasonRequired, "say why the switch changes; it is kept with the evidence")
	}
	if len(r.Reason) > 4096 {
		return SwitchAnswer{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "reason has at most 4096 bytes")
	}
	keys, err := e.keys.of(ctx, a.Tenant)
	if err != nil {
		return SwitchAnswer{}, err
	}
	s, flight, err := e.store.SetSwitch(ctx, store.SwitchChange{Tenant: a.Tenant, Scope: scope, On: *r.On, ReasonText: keys.index.Seal("switch", []byte(r.Reason)), Who: who(a)})
	if err == nil {
		e.announce(ctx, a.Tenant, "switch.changed", map[bool]string{true: "on", false: "off"}[*r.On])
	}
	return SwitchAnswer{s, flight}, err
}

// ConnectorView is one connector of the active policy as it stands on this replica.
type ConnectorView struct {
	Name           string                `json:"name"`
	Kind           string                `json:"kind"`
	Version        string                `json:"version"`
	Provider       string                `json:"provider"`
	HasLookup      bool                  `json:"has_lookup"`
	Idempotency    bool                  `json:"idempotency_declared"`
	Proved         bool                  `json:"proved"` // a valid proof: only then may an ambiguous request be repeated
	MissingSecrets []string              `json:"missing_secrets,omitempty"`
	Holds          []store.ConnectorHold `json:"holds"`
}

// Connectors lists the connectors of the active policy.
func (e *Engine) Connectors(ctx context.Context, a holdpoint.Actor) ([]ConnectorView, error) {
	if err := permit(a, holdpoint.ActionConnectorView); err != nil {
		return nil, err
	}
	p, err := e.policies.active(ctx, a.Tenant)
	if err != nil {
		return nil, err
	}
	holds, err := e.store.ConnectorHolds(ctx, a.Tenant)
	if err != nil {
		return nil, err
	}
	out := []ConnectorView{}
	for _, name := range sortedKeys(p.Connectors) {
		c := p.Connectors[name]
		v := ConnectorView{Name: name, Kind: c.Kind, Version: c.Version, Provider: c.Target, HasLookup: c.Lookup != nil,
			Idempotency: c.Idempotency != nil, MissingSecrets: c.MissingSecrets(e.secrets), Holds: []store.ConnectorHold{}}
		proof, err := e.store.Proof(ctx, a.Tenant, name, c.Version)
		if err != nil {
			return nil, err
		}
		v.Proved = proof != nil
		for _, h := range holds {
			if h.Connector == name {
				v.Holds = append(v.Holds, h)
			}
		}
		out = append(out, v)
	}
	return out, nil
}

// ReleaseConnector lifts a connector's holds after somebody has mended what caused them; it returns how many effects may
// go on.
func (e *Engine) ReleaseConnector(ctx context.Context, a holdpoint.Actor, name string) (int, error) {
	if err := permit(a, holdpoint.ActionConnectorRelease); err != nil {
		return 0, err
	}
	p, err := e.policies.active(ctx, a.Tenant)
	if err != nil {
		return 0, err
	}
	c := p.Connectors[name]
	if c == nil {
		return 0, holdpoint.Errorf(holdpoint.CodeNotFound, "the active policy has no connector with this name")
	}
	if missing := c.MissingSecrets(e.secrets); len(missing) > 0 {
		return 0, holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "the connector still lacks %s on this replica; set it, restart and release again", strings.Join(missing, ", "))
	}
	return e.store.ReleaseConnector(ctx, a.Tenant, name, c.Version, who(a))
}
