package simtest

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// operate lets the people who run the place do something.
func (w *world) operate() {
	s := w.evidence
	reason := map[string]any{"reason": secret + " reason"}
	if w.chance(500) && w.resolveStep() {
		return
	}
	switch n := w.rng.IntN(100); {
	case n < 22:
		w.flip(pick(w, []string{"global", "tenant", "workflow:ticket", "connector:crm", "type:pay.refund"}), w.chance(650))
	case n < 34:
		w.activate(pick(w, w.base.policies))
	case n < 42:
		w.role()
	case n < 46:
		w.account()
	case n < 52 && len(s.runs) > 0:
		r := pick(w, s.runs)
		w.say("the operator cancels %s", w.name(r.id))
		w.ask("ops", "POST", "/v1/runs/"+r.id+"/cancel", reason, func(c *call) {
			if s.follow(); c.acknowledged && c.status < 300 && !r.state.Terminal() && r.state != holdpoint.RunApproved {
				w.broken("I12: %s was cancelled, and is %s", w.name(r.id), r.state)
			}
		})
	case n < 58 && len(s.approvals) > 0:
		a := pick(w, s.approvals)
		w.say("the operator withdraws the question about %s", w.name(a.run.id))
		w.ask("ops", "POST", "/v1/approvals/"+a.id+"/withdraw", reason, func(c *call) {
			if s.follow(); c.acknowledged && c.status < 300 && a.state != holdpoint.ApprovalWithdrawn {
				w.broken("I12: the question about %s was withdrawn, and is %s", w.name(a.run.id), a.state)
			}
		})
	case n < 66 && len(s.runs) > 0:
		w.replace(pick(w, s.runs))
	case n < 72:
		w.release(pick(w, []string{"crm", "pay", "book", "mail"}))
	default:
		w.operateEffect()
	}
}

func (w *world) flip(scope string, on bool) {
	w.say("the switch %s goes %v", scope, map[bool]string{true: "on", false: "off"}[on])
	w.ask("ops", "PUT", "/v1/switches/"+scope, map[string]any{"on": on, "reason": secret}, func(c *call) {
		w.evidence.follow()
		w.reach("switch: " + scope)
	})
}

// activate makes a policy the active one, as somebody who looked which one is.
func (w *world) activate(hash string) {
	w.say("policy %.4s is activated", hash)
	expected := w.evidence.policy
	w.ask("ops", "POST", "/v1/policies/"+hash+"/activate", map[string]any{"expected_active": expected}, func(c *call) {
		if w.evidence.follow(); c.acknowledged && c.status < 300 && w.evidence.moved.IsZero() {
			w.broken("I12: a policy was activated of which nothing is written")
		}
	})
}

func (w *world) role() {
	if w.chance(500) {
		w.say("dora loses her role")
		w.ask("ops", "DELETE", "/v1/users/dora@acme.example/grants/lead", nil, nil)
		return
	}
	w.say("dora gets her role")
	w.ask("ops", "POST", "/v1/users/dora@acme.example/grants", map[string]any{"role": "lead"}, nil)
}

// account disables cy, or enables the account again.
func (w *world) account() {
	if w.chance(500) {
		w.say("cy's account is disabled")
		w.ask("ops", "DELETE", "/v1/users/cy@acme.example", nil, nil)
		return
	}
	w.say("cy's account is enabled")
	w.ask("ops", "POST", "/v1/users/cy@acme.example/enable", nil, nil)
}

// replace corrects a run under a key of its own.
func (w *world) replace(r *run) {
	old := w.jobOf(r)
	if old == nil || w.active() > 6 {
		return
	}
	j := w.newJob(r.workflow)
	if w.chance(150) && len(w.jobs) > 3 {
		j = pick(w, w.jobs)
	}
	w.say("the operator replaces %s by %s", w.name(r.id), j.key)
	w.ask("ops", "POST", "/v1/runs/"+r.id+"/replace", map[string]any{"key": j.key, "payload": j.body(""), "reason": secret}, func(c *call) {
		if w.evidence.follow(); c.acknowledged && c.status < 300 {
			var a engine.Replacement
			c.into(&a)
			if !r.replaced || w.evidence.runByID[a.Run.ID] == nil {
				w.broken("I12: %s was replaced, and nothing is written", w.name(r.id))
			}
			j.run = a.Run.ID
		}
	})
}

func (w *world) release(connector string) {
	w.say("connector %s is released", connector)
	w.ask("ops", "POST", "/v1/connectors/"+connector+"/release", nil, nil)
}

// resolveStep says what became of a step that is uncertain, if there is one.
func (w *world) resolveStep() bool {
	for _, r := range w.evidence.runs {
		for _, name := range stepNames {
			if r.steps[name] != holdpoint.StepUncertain {
				continue
			}
			w.say("the operator resolves step %s of %s", name, w.name(r.id))
			w.ask("ops", "POST", "/v1/runs/"+r.id+"/steps/"+name+"/resolve", map[string]any{"verdict": pick(w, []string{"done", "not_done"}), "reason": secret}, func(c *call) {
				if w.evidence.follow(); c.acknowledged && c.status < 300 && r.steps[name] == holdpoint.StepUncertain {
					w.broken("I12: a step of %s was resolved, and is uncertain", w.name(r.id))
				}
			})
			return true
		}
	}
	return false
}

// operateEffect cancels, looks up or resolves an effect, as somebody does who has asked the provider.
func (w *world) operateEffect() {
	if len(w.evidence.effects) == 0 {
		return
	}
	x := pick(w, w.evidence.effects)
	for range 4 {
		if x.state == holdpoint.EffectUnknown {
			break
		}
		x = pick(w, w.evidence.effects)
	}
	switch n := w.rng.IntN(100); {
	case n < 25:
		w.cancelEffect(x)
	case n < 45:
		w.say("the operator has %s of %s looked up", x.slot, w.name(x.run.id))
		w.ask("ops", "POST", "/v1/effects/"+x.id+"/reconcile", map[string]any{}, nil)
	default:
		w.resolve(x, w.chance(150))
	}
}

func (w *world) cancelEffect(x *effect) {
	w.say("the operator cancels %s of %s", x.slot, w.name(x.run.id))
	w.ask("ops", "POST", "/v1/effects/"+x.id+"/cancel", map[string]any{"reason": secret}, func(c *call) {
		if w.evidence.follow(); c.acknowledged && c.status < 300 && x.state.Open() && x.state != holdpoint.EffectUnknown {
			w.broken("I12: %s of %s was cancelled, and is %s", x.slot, w.name(x.run.id), x.state)
		}
	})
}

// resolve records the truth about an unknown effect, as the provider tells it to somebody who calls, or abandons it.
func (w *world) resolve(x *effect, abandon bool) {
	verdict := "not_sent"
	if objects := w.provider.objects[w.reference(x)]; len(objects) > 0 {
		verdict = "sent"
	}
	if abandon {
		verdict = "abandon"
	}
	w.say("the operator says that %s of %s is %s", x.slot, w.name(x.run.id), verdict)
	w.ask("ops", "POST", "/v1/effects/"+x.id+"/resolve", map[string]any{"verdict": verdict, "reason": secret}, func(c *call) {
		if w.evidence.follow(); c.acknowledged && c.status < 300 && x.word == "" {
			w.broken("I12: a verdict about %s was answered of which nothing is written", w.name(x.run.id))
		}
	})
}

// reference reads our mark on the provider's object.
func (w *world) reference(x *effect) string {
	var ref string
	if err := w.read.QueryRow("SELECT reference FROM effects WHERE id = ?", x.id).Scan(&ref); err != nil {
		w.broken("an effect cannot be read: %v", err)
	}
	return ref
}

// look makes a GET. It changes nothing but what evidence says about the reading (I8).
func (w *world) look() {
	s := w.evidence
	w.pump(-1)
	s.follow()
	s.compare()
	paths := []string{"/v1/approvals", "/v1/effects", "/v1/runs", "/v1/switches", "/v1/connectors", "/v1/evidence", "/v1/me", "/console", "/console/unknown"}
	if len(s.runs) > 0 {
		r := pick(w, s.runs)
		paths = append(paths, "/v1/runs/"+r.id, "/v1/runs/"+r.id+"/evidence")
	}
	if len(s.approvals) > 0 {
		a := pick(w, s.approvals)
		paths = append(paths, "/v1/approvals/"+a.id, "/console/approvals/"+a.id)
	}
	if len(s.effects) > 0 {
		paths = append(paths, "/v1/effects/"+pick(w, s.effects).id)
	}
	who, target := pick(w, []string{"ana", "eve", "ops", "n8n"}), pick(w, paths)
	if who == "n8n" && target[:3] != "/v1" {
		who = "ops"
	}
	w.say("%s looks", who)
	crashes, begun := w.crashes, s.last
	w.ask(who, http.MethodGet, target, nil, nil)
	w.pump(-1)
	if s.follow(); w.crashes == crashes {
		for row, typ := range w.typesAfter(begun) {
			if typ != "content.read" {
				w.broken("I8: a GET of %s has written %s (event %d)", target, typ, row)
			}
		}
	}
	w.compared = -1
	s.compare()
}

func (w *world) typesAfter(row int64) map[int64]string {
	out := map[int64]string{}
	w.evidence.rows(fmt.Sprintf("SELECT rowid, type, rowid FROM events WHERE rowid > %d", row), func(_, typ string, row int64) { out[row] = typ })
	return out
}

// heal ends all faults and mends what can be mended; then time runs until nothing moves by itself any more.
func (w *world) heal() {
	s := w.evidence
	w.say("everything is healed")
	w.faulty, w.poll = false, 30*time.Minute
	for _, x := range w.turnstile.list() {
		x.held = time.Time{}
	}
	w.pump(-1)
	w.proc.dead.Store(true)
	w.pump(-1)
	s.follow()
	w.activate(w.base.policies[0])
	w.pump(-1)
	scopes := []string{"global", "tenant"}
	for scope := range s.switches {
		if !slices.Contains(scopes, scope) {
			scopes = append(scopes, scope)
		}
	}
	slices.Sort(scopes)
	for _, scope := range scopes {
		w.flip(scope, true)
		w.pump(-1)
	}
	for _, connector := range []string{"crm", "pay", "book", "mail"} {
		w.release(connector)
		w.pump(-1)
	}
	w.advance(90 * time.Minute)
	for range 3 {
		s.follow()
		for _, x := range s.effects {
			switch {
			case x.state == holdpoint.EffectUnknown:
				w.resolve(x, false)
			case x.state == holdpoint.EffectPending && x.hold != holdpoint.HoldNone:
				w.cancelEffect(x)
			}
			w.pump(-1)
		}
		w.advance(time.Hour)
	}
	w.advance(4 * time.Hour)
	w.check()
	w.atRest()
}

// atRest demands the end: every run has ended or waits for a human, and what a provider has accepted is known as
// completed or unknown, never as failed, unless a person has given it up.
func (w *world) atRest() {
	s := w.evidence
	for _, r := range s.runs {
		waits := false
		for _, x := range s.effects {
			if x.run == r && x.state.Open() {
				if x.state == holdpoint.EffectSending || x.state == holdpoint.EffectPending && x.hold == "" && (s.before(x) == nil || !s.before(x).state.Open()) {
					w.broken("%s of %s is %s and nobody does anything about it", x.slot, w.name(r.id), x.state)
				}
				waits = true
			}
		}
		if !r.state.Terminal() && r.state != holdpoint.RunAwaitingHuman && !waits {
			w.broken("%s is %s %s, and nothing moves it", w.name(r.id), r.state, r.reason)
		}
		w.reach("end: " + string(r.state) + " " + string(r.reason))
	}
	for _, x := range s.effects {
		made := len(w.provider.objects[w.reference(x)])
		switch {
		case made > 0 && x.state != holdpoint.EffectCompleted && x.state != holdpoint.EffectUnknown && x.word != holdpoint.VerdictAbandon:
			w.broken("%s of %s was accepted, and is %s", x.slot, w.name(x.run.id), x.state)
		case made == 0 && x.state == holdpoint.EffectCompleted:
			w.broken("%s of %s is completed, and the provider has nothing", x.slot, w.name(x.run.id))
		case made > 1:
			w.broken("I3: %s of %s was accepted %d times", x.slot, w.name(x.run.id), made)
		}
	}
}
