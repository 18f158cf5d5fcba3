package policy

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// gate reads the gate of w and holds it against the floors of its effects (R3.2) and against who could ever meet it.
func (o *object) gate(w *Workflow, effects *object, p *Policy) {
	n := o.need("gate", "say who approves, for example {roles: [support-lead]}")
	if n == nil {
		return
	}
	g := o.object(n, `"gate" of `+o.what)
	g.refuse("window", "use pattern approve_before_act")
	g.refuse("exception", "use pattern approve_before_act")
	g.refuse("remind", "choose approve_by so that one message is enough")

	gate := Gate{
		Pattern:   g.string("pattern", PatternApproveBeforeAct),
		Assurance: g.string("assurance", AssuranceLogin),
		ApproveBy: g.duration("approve_by", 24*time.Hour),
		ExecuteBy: g.duration("execute_by", 48*time.Hour),
		Notify:    g.channelNames("notify", p),
	}
	switch gate.Pattern {
	case PatternApproveBeforeAct, "":
	case "act_with_window", "approve_by_exception":
		g.fail(g.has("pattern"), later, "pattern %q is not in this version: use approve_before_act", gate.Pattern)
	default:
		g.fail(g.has("pattern"), "invalid_value", "use pattern approve_before_act; %q is none", gate.Pattern)
	}
	switch gate.Assurance {
	case AssuranceLink, AssuranceLogin, "":
	case "sso", "sso+fresh":
		g.fail(g.has("assurance"), later, "assurance %q is not in this version: use login", gate.Assurance)
	default:
		g.fail(g.has("assurance"), "invalid_value", "use assurance link or login; %q is none", gate.Assurance)
	}
	if q := g.has("quorum"); q != nil && (q.Kind != yaml.ScalarNode || q.Value != "1") {
		g.fail(q, later, `"quorum" other than 1 is not in this version: let one person of the named roles decide`)
	}
	if e := g.has("on_expiry"); e != nil && (e.Kind != yaml.ScalarNode || e.Value != "reject") {
		if e.Kind == yaml.MappingNode || e.Kind == yaml.ScalarNode && len(e.Value) >= 8 && e.Value[:8] == "escalate" {
			g.fail(e, later, `"escalate" on expiry is not in this version: write on_expiry: reject`)
		} else {
			g.fail(e, "invalid_value", "write on_expiry: reject; silence never approves")
		}
	}
	var nodes []*yaml.Node
	gate.Roles, nodes = g.strings("roles")
	g.eligible(gate.Roles, nodes, p)
	g.floors(&gate, w, effects, p)
	g.close()
	w.Gate = gate
}

// eligible refuses a rule that nobody can meet, and warns where one person is all there is.
func (o *object) eligible(roles []string, nodes []*yaml.Node, p *Policy) {
	n := o.need("roles", "name the roles whose people may approve")
	if n == nil {
		return
	}
	var people []string
	known := true
	for i, name := range roles {
		role, ok := p.Roles[name]
		if !ok {
			known = false
			o.fail(nodes[i], "unknown_role", "declare the role %q under roles", name)
		}
		for _, u := range role.Users {
			if !slices.Contains(people, u) {
				people = append(people, u)
			}
		}
	}
	switch {
	case !known:
	case len(people) == 0:
		o.fail(n, "nobody_eligible", "list people under users of these roles: a rule that nobody can meet is refused")
	case len(people) == 1:
		o.warn(n, "few_people", "name a second person: who starts or edits a draft may not approve it, and one person may be away")
	}
}

// floors holds the gate against the consequence class of every effect.
func (o *object) floors(gate *Gate, w *Workflow, effects *object, p *Policy) {
	for _, e := range w.Effects {
		floor, known := assuranceFloors[e.Consequence]
		if !known {
			continue
		}
		at := o.has("assurance")
		if at == nil {
			at = o.node
		}
		if gate.Assurance == AssuranceLink && floor != AssuranceLink {
			o.fail(at, "floor", "effect %q is a %s: use assurance login; the floor can be raised, never lowered", e.Name, e.Consequence)
		}
		if slices.Contains(separatedClasses, e.Consequence) && w.Initiator == "" {
			n := child(effects.has(e.Name), "consequence")
			o.fail(n, "initiator_required", "effect %q is a %s: say under initiator who started it, so that nobody approves a request of their own", e.Name, e.Consequence)
		}
	}
	if gate.Assurance != AssuranceLink {
		return
	}
	private := len(gate.Notify) > 0
	for _, name := range gate.Notify {
		private = private && p.Channels[name] != nil && p.Channels[name].Private()
	}
	if !private {
		o.fail(o.has("assurance"), "link_channel", "with assurance link, notify people on their own channels only: smtp, or a webhook with personal: true")
	}
}
