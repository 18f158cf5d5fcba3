package console

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// effectRow is one effect with what happens next by itself and what this person may do about it.
type effectRow struct {
	engine.EffectView
	Next      string // a catalogue key: what the machine does next
	At        time.Time
	Back      string
	Nonce     string
	Resolve   bool
	Reconcile bool
	Cancel    bool
}

func (v *visit) effectRow(x engine.EffectView, lookups map[string]bool, back string) effectRow {
	row := effectRow{EffectView: x, Back: back}
	if x.Planned {
		return row
	}
	row.Nonce = v.nonce("effect", x.ID)
	row.Next, row.At = nextStep(x.Effect)
	row.Resolve = x.State == holdpoint.EffectUnknown && v.may(holdpoint.ActionEffectResolve)
	row.Reconcile = x.State == holdpoint.EffectUnknown && lookups[x.Connector] && v.may(holdpoint.ActionEffectReconcile)
	row.Cancel = x.State == holdpoint.EffectPending && v.may(holdpoint.ActionEffectCancel)
	return row
}

// nextStep says what happens to an effect by itself, as a catalogue key, and when if that is known.
func nextStep(x holdpoint.Effect) (key string, at time.Time) {
	switch {
	case x.State == holdpoint.EffectUnknown && x.NextLookupAt != nil:
		return "next.lookup", *x.NextLookupAt
	case x.State == holdpoint.EffectUnknown:
		return "next.person", at
	case x.State == holdpoint.EffectSending:
		return "next.sending", at
	case x.State == holdpoint.EffectPending && x.Hold != holdpoint.HoldNone:
		return "next.hold." + string(x.Hold), at
	case x.State == holdpoint.EffectPending && x.NextAttemptAt != nil:
		return "next.attempt", *x.NextAttemptAt
	case x.State == holdpoint.EffectPending:
		return "next.turn", at
	}
	return "", at
}

// lookups tells which connectors can look a write up.
func (v *visit) lookups() (map[string]bool, error) {
	out := map[string]bool{}
	all, err := v.engine.Connectors(v.r.Context(), v.actor)
	if code := codeOf(err); code == holdpoint.CodeNoPolicy || code == holdpoint.CodeForbidden {
		return out, nil
	}
	for _, x := range all {
		out[x.Name] = x.HasLookup
	}
	return out, err
}

// unknownPage is the lanes that need somebody: what nobody knows the end of, and what is held.
type unknownPage struct {
	Now      time.Time
	Unknown  []effectRow
	Held     []effectRow
	MoreOpen bool
}

func (c *console) unknown(v *visit) error {
	ctx := v.r.Context()
	lookups, err := v.lookups()
	if err != nil {
		return err
	}
	p := unknownPage{Now: time.Now()}
	for _, lane := range []struct {
		query engine.EffectQuery
		rows  *[]effectRow
	}{
		{engine.EffectQuery{State: holdpoint.EffectUnknown, Limit: 100}, &p.Unknown},
		{engine.EffectQuery{Held: true, Limit: 100}, &p.Held},
	} {
		found, err := v.engine.Effects(ctx, v.actor, lane.query)
		if err != nil {
			return err
		}
		p.MoreOpen = p.MoreOpen || found.Next != ""
		for _, x := range found.Effects {
			*lane.rows = append(*lane.rows, v.effectRow(engine.EffectView{Effect: x}, lookups, "unknown"))
		}
	}
	return v.show(http.StatusOK, "unknown", "title.unknown", "unknown", p)
}

// effectOperate does what a form of an effect asks: resolve, reconcile or cancel.
func (c *console) effectOperate(v *visit) error {
	id, ctx := v.r.PathValue("id"), v.r.Context()
	if err := v.checkNonce("effect", id); err != nil {
		return err
	}
	var x holdpoint.Effect
	var err error
	switch v.r.PathValue("operation") {
	case "resolve":
		verdict := holdpoint.Verdict(v.r.PostFormValue("verdict"))
		r := engine.Resolution{Verdict: verdict, Reason: v.reason()}
		if verdict == holdpoint.VerdictSent {
			r.ProviderID = strings.TrimSpace(v.r.PostFormValue("provider_id"))
		}
		x, err = v.engine.Resolve(ctx, v.actor, id, r)
	case "reconcile":
		x, err = v.engine.Reconcile(ctx, v.actor, id)
	case "cancel":
		x, err = v.engine.CancelEffect(ctx, v.actor, id, v.reason())
	default:
		err = holdpoint.Errorf(holdpoint.CodeNotFound, "there is no such page")
	}
	if err != nil {
		return err
	}
	if v.r.PostFormValue("back") == "run" {
		return v.redirect("/console/runs/" + x.RunID)
	}
	return v.redirect("/console/unknown")
}

// sending says whether anything leaves, and if not, why not.
type sending struct {
	On      bool
	Reasons []string // catalogue keys
	Narrow  []string // narrower scopes that are off
}

func sendingOf(s engine.SwitchState) sending {
	var out sending
	on := map[string]bool{}
	for _, w := range s.Switches {
		on[w.Scope] = w.On
		if !w.On && strings.Contains(w.Scope, ":") {
			out.Narrow = append(out.Narrow, w.Scope)
		}
	}
	if !s.Enabled {
		out.Reasons = append(out.Reasons, "sending.environment")
	}
	if !on["global"] {
		out.Reasons = append(out.Reasons, "sending.global")
	}
	if !on["tenant"] {
		out.Reasons = append(out.Reasons, "sending.tenant")
	}
	out.On = len(out.Reasons) == 0
	return out
}

// switchRow is one switch with its form.
type switchRow struct {
	holdpoint.Switch
	Kind   string // global, tenant, messages, workflow, connector or type
	Name   string
	Stored bool
	Nonce  string
	Usable bool
}

type switchesPage struct {
	Sending  sending
	Rows     []switchRow
	InFlight []holdpoint.Attempt
	Nonce    string // for a scope that is not stored yet
	Usable   bool
	Kinds    []string
	Now      time.Time
}

func (c *console) switches(v *visit) error {
	s, err := v.engine.Switches(v.r.Context(), v.actor)
	if err != nil {
		return err
	}
	usable := holdpoint.Permit(v.actor, holdpoint.ActionSwitchSet, holdpoint.Object{Tenant: v.actor.Tenant, Switch: "tenant"}) == nil
	p := switchesPage{Sending: sendingOf(s), InFlight: s.InFlight, Nonce: v.nonce("switch", ""), Usable: usable,
		Kinds: []string{"workflow", "connector", "type"}, Now: time.Now()}
	for _, scope := range []string{"global", "tenant", "messages"} {
		row := switchRow{Switch: holdpoint.Switch{Scope: scope, On: scope == "messages"}}
		if i := slices.IndexFunc(s.Switches, func(w holdpoint.Switch) bool { return w.Scope == scope }); i >= 0 {
			row.Switch, row.Stored = s.Switches[i], true
		}
		p.Rows = append(p.Rows, row)
	}
	for _, w := range s.Switches {
		if strings.Contains(w.Scope, ":") {
			p.Rows = append(p.Rows, switchRow{Switch: w, Stored: true})
		}
	}
	for i, row := range p.Rows {
		p.Rows[i].Kind, p.Rows[i].Name, _ = strings.Cut(row.Scope, ":")
		p.Rows[i].Nonce, p.Rows[i].Usable = v.nonce("switch", row.Scope), usable
	}
	return v.show(http.StatusOK, "switches", "title.switches", "switches", p)
}

func (c *console) switchSet(v *visit) error {
	scope, about := v.r.PostFormValue("scope"), v.r.PostFormValue("scope")
	if kind := v.r.PostFormValue("kind"); kind != "" {
		scope, about = kind+":"+strings.TrimSpace(v.r.PostFormValue("name")), ""
	}
	if err := v.checkNonce("switch", about); err != nil {
		return err
	}
	r := engine.SwitchRequest{Reason: v.reason()}
	switch v.r.PostFormValue("on") {
	case "true":
		r.On = new(true)
	case "false":
		r.On = new(false)
	}
	if _, err := v.engine.SetSwitch(v.r.Context(), v.actor, scope, r); err != nil {
		return err
	}
	return v.redirect("/console/switches")
}

type connectorsPage struct {
	Rows []connectorRow
	Now  time.Time
}

type connectorRow struct {
	engine.ConnectorView
	Release *operation
}

func (c *console) connectors(v *visit) error {
	all, err := v.engine.Connectors(v.r.Context(), v.actor)
	if err != nil {
		return err
	}
	p := connectorsPage{Now: time.Now()}
	for _, x := range all {
		row := connectorRow{ConnectorView: x}
		if v.may(holdpoint.ActionConnectorRelease) {
			row.Release = &operation{v.speech.path("/console/connectors", x.Name), v.nonce("connector", x.Name)}
		}
		p.Rows = append(p.Rows, row)
	}
	return v.show(http.StatusOK, "connectors", "title.connectors", "connectors", p)
}

func (c *console) connectorRelease(v *visit) error {
	name := v.r.PathValue("name")
	if err := v.checkNonce("connector", name); err != nil {
		return err
	}
	if _, err := v.engine.ReleaseConnector(v.r.Context(), v.actor, name); err != nil {
		return err
	}
	return v.redirect("/console/connectors")
}

func (c *console) people(v *visit) error {
	all, err := v.engine.People(v.r.Context(), v.actor)
	if err != nil {
		return err
	}
	return v.show(http.StatusOK, "people", "title.people", "people", all)
}

type policyPage struct {
	Shown *engine.PolicyInfo // nil if none is active
	All   []engine.PolicyInfo
}

func (c *console) policy(v *visit) error {
	hash := v.r.PathValue("hash")
	if hash == "" {
		hash = "active"
	}
	all, err := v.engine.Policies(v.r.Context(), v.actor)
	if err != nil {
		return err
	}
	p := policyPage{All: all}
	shown, err := v.engine.Policy(v.r.Context(), v.actor, hash)
	switch {
	case err == nil:
		p.Shown = &shown
	case codeOf(err) != holdpoint.CodeNoPolicy:
		return err
	}
	return v.show(http.StatusOK, "policy", "title.policy", "policy", p)
}
