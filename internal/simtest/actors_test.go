package simtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// job is one business event, and what the workflow that works it knows.
type job struct {
	workflow, key, to, by string
	run                   string // "" until a claim was answered
	lease                 *claim // that it believes to hold
	exec                  string
	owner                 string // of a claim that was not answered: asked again with the same
	stepwise              bool   // its worker goes in steps
	n                     int    // drafts made, so that each has a text of its own
	repeat                func() // the last call again, as after a lost answer
}

// body is the payload of the job's event.
func (j *job) body(text string) json.RawMessage {
	b, err := json.Marshal(map[string]string{"to": j.to, "by": j.by + "@acme.example", "text": secret + text})
	if err != nil {
		panic(err)
	}
	return b
}

// jobOf finds the job of a run by its key.
func (w *world) jobOf(r *run) *job {
	for _, j := range w.jobs {
		if j.workflow == r.workflow && j.key == r.key {
			return j
		}
	}
	return nil
}

func (w *world) newJob(workflow string) *job {
	n := len(w.jobs) + 1
	j := &job{workflow: workflow, key: fmt.Sprintf("%s-%d", workflow, n), to: fmt.Sprintf("jane-%d", n), by: pick(w, []string{"ben", "zoe"}), stepwise: w.chance(350)}
	w.jobs = append(w.jobs, j)
	return j
}

// deliver brings a business event: a new one, a known one again, one with another payload, or several at once.
func (w *world) deliver() {
	if len(w.jobs) == 0 || w.active() < 5 && w.chance(400) {
		w.newJob(pick(w, []string{"ticket", "ticket", "refund", "order"}))
		w.claim(w.jobs[len(w.jobs)-1], "")
		return
	}
	j := pick(w, w.jobs)
	switch {
	case w.chance(100):
		w.claim(j, " and changed")
	case w.chance(100):
		w.batch()
	case w.chance(100) && j.run != "":
		exec := fmt.Sprintf("exec-%d", w.rng.IntN(1000))
		w.say("somebody claims the run of %s", j.key)
		w.ask("n8n", "POST", "/v1/runs/"+j.run+"/claim", map[string]any{"execution_id": exec}, func(c *call) { w.claimed(j, c, exec) })
	default:
		w.claim(j, "")
	}
}

// active counts the runs that have not ended.
func (w *world) active() int {
	n := 0
	for _, r := range w.evidence.runs {
		if !r.state.Terminal() {
			n++
		}
	}
	return n
}

func (w *world) claim(j *job, changed string) {
	w.say("a delivery of %s%s", j.key, changed)
	r := map[string]any{"workflow": j.workflow, "key": j.key, "payload": j.body(changed)}
	if j.owner == "" && w.chance(500) {
		j.owner = w.uuid()
	}
	exec := ""
	if j.owner != "" {
		r["owner"] = j.owner
	} else if w.chance(300) {
		exec = fmt.Sprintf("exec-%d", w.rng.IntN(1000))
		r["trigger"] = map[string]any{"execution_id": exec}
	}
	w.ask("n8n", "POST", "/v1/claims", r, func(c *call) { w.claimed(j, c, exec) })
}

// uuid mints an owner. It is the same in a replay.
func (w *world) uuid() string {
	return fmt.Sprintf("%08x-0000-4000-8000-%012x", w.rng.Uint32(), w.rng.Uint64()&0xffffffffffff)
}

// claimed reads the answer to a claim.
func (w *world) claimed(j *job, c *call, exec string) {
	if !c.acknowledged || c.status != http.StatusCreated && c.status != http.StatusOK && c.status != http.StatusConflict {
		return
	}
	var a engine.ClaimAnswer
	c.into(&a)
	w.answeredClaim(j, a, exec)
}

func (w *world) answeredClaim(j *job, a engine.ClaimAnswer, exec string) {
	w.evidence.follow()
	w.reach("outcome: " + string(a.Outcome))
	r := w.evidence.runByID[a.Run.ID]
	if r == nil {
		w.broken("I12: a claim of %s was answered of which nothing is written", j.key)
	}
	j.run = a.Run.ID
	if a.Outcome != holdpoint.Claimed {
		return
	}
	got := claim{a.Lease.Owner, a.Lease.Version}
	known := false
	for _, c := range r.claims {
		if c.version == got.version && c.owner != got.owner {
			w.broken("I5: version %d of %s has two owners", got.version, j.key)
		}
		known = known || c == got
	}
	if !known {
		w.broken("I12: a lease of %s was answered that is not written", j.key)
	}
	j.lease, j.exec, j.owner = &got, exec, ""
}

// batch brings several deliveries in one call.
func (w *world) batch() {
	w.say("a batch of deliveries")
	var claims []map[string]any
	var of []*job
	for range 2 + w.rng.IntN(3) {
		j := pick(w, w.jobs)
		of = append(of, j)
		claims = append(claims, map[string]any{"workflow": j.workflow, "key": j.key, "payload": j.body("")})
	}
	w.ask("n8n", "POST", "/v1/claims/batch", map[string]any{"claims": claims}, func(c *call) {
		if !c.acknowledged || c.status != http.StatusOK {
			return
		}
		var a struct {
			Results []struct {
				Outcome holdpoint.ClaimOutcome
				Run     *engine.ClaimedRun
				Lease   *holdpoint.Lease
			}
		}
		c.into(&a)
		for i, r := range a.Results {
			if r.Run != nil {
				w.answeredClaim(of[i], engine.ClaimAnswer{Outcome: r.Outcome, Run: *r.Run, Lease: r.Lease}, "")
			}
		}
	})
}

// work does the next thing of a workflow that holds a lease, or believes so.
func (w *world) work() {
	var with []*job
	for _, j := range w.jobs {
		if j.lease != nil {
			with = append(with, j)
		}
	}
	if len(with) == 0 {
		w.deliver()
		return
	}
	j := pick(w, with)
	if j.repeat != nil && w.chance(60) {
		w.say("the same call for %s again", j.key)
		j.repeat()
		return
	}
	j.n++
	text := fmt.Sprintf("%s answer %d", secret, j.n)
	draft := func(output any, finish string) {
		// The name makes each call another one: the same call again would be answered what stands.
		w.workCall(j, "draft", map[string]any{"output": output, "model": map[string]any{"finish_reason": finish, "name": fmt.Sprintf("m%d", j.n)}})
	}
	if j.stepwise && w.chance(700) {
		w.workStep(j, text)
		return
	}
	step := "steps/" + pick(w, stepNames) + "/"
	switch n := w.rng.IntN(100); {
	case n < 42:
		draft(map[string]any{"reply": text}, "")
	case n < 47:
		draft(map[string]any{"answer": text}, "")
	case n < 49:
		draft(text, "length")
	case n < 51:
		draft(text, "content_filter")
	case n < 53:
		draft(map[string]any{"reply": "nothing"}, "")
	case n < 58:
		w.workCall(j, "renew", map[string]any{})
	case n < 76:
		w.workCall(j, step+"begin", map[string]any{"side_effect": w.chance(600)})
	case n < 83:
		w.workCall(j, step+"finish", map[string]any{"result": map[string]string{"done": text}})
	case n < 88:
		w.workCall(j, step+"finish", map[string]any{"failed": map[string]any{"class": "model_timeout", "message": text}})
	case n < 99:
		w.workCall(j, "fail", map[string]any{"class": pick(w, []string{"model_timeout", "model_throttled", "connect", "refusal", "context_too_long", "crash"}), "message": text})
	default:
		w.workCall(j, "complete", map[string]any{"result": map[string]string{"done": text}})
	}
}

// workStep goes on with the steps of a run: it begins one that is not complete, or ends the one that is under way.
func (w *world) workStep(j *job, text string) {
	r := w.evidence.runByID[j.run]
	name := pick(w, stepNames)
	for _, other := range stepNames {
		if s := r.steps[other]; s != "" && s != holdpoint.StepCompleted {
			name = other
		}
	}
	step := "steps/" + name + "/"
	if r.steps[name] != holdpoint.StepRunning || w.chance(600) {
		w.workCall(j, step+"begin", map[string]any{"side_effect": w.chance(500)})
	} else if w.chance(500) {
		w.workCall(j, step+"finish", map[string]any{"result": map[string]string{"done": text}})
	} else {
		w.workCall(j, step+"finish", map[string]any{"failed": map[string]any{"class": "model_timeout", "message": text}})
	}
}

// stepNames are the steps of every workflow.
var stepNames = []string{"s0", "s1"}

// workCall makes one call under the lease that the worker believes to hold. If it was taken over before the call began,
// nothing may come of it (I5).
func (w *world) workCall(j *job, what string, body map[string]any) {
	l := *j.lease
	body["owner"], body["version"] = l.owner, l.version
	if j.exec != "" {
		body["execution_id"] = j.exec
	}
	first := true
	j.repeat = func() {
		repeated := !first
		first = false
		stale := w.evidence.runByID[j.run].version != l.version
		w.say("the worker of %s: %s", j.key, what)
		target := "/v1/runs/" + j.run + "/" + what
		w.ask("n8n", "POST", target, body, func(c *call) {
			if c.status >= 500 || !c.acknowledged {
				return
			}
			w.evidence.follow()
			if c.status < 300 && stale && !repeated {
				w.broken("I5: %s of %s was accepted under a lease that had been lost", what, j.key)
			}
			if c.status == http.StatusOK && what == "draft" {
				var a engine.DraftAnswer
				c.into(&a)
				if q := w.evidence.approval[a.Approval.ID]; q == nil || q.digest != a.Approval.Digest {
					w.broken("I12: a draft of %s was answered of which nothing is written", j.key)
				}
			}
			if c.status == http.StatusConflict {
				w.reach("a lost lease was noticed")
				if what != "renew" && j.lease != nil && *j.lease == l && w.chance(800) {
					j.lease = nil
				}
			}
		})
	}
	j.repeat()
}

// decide lets somebody answer a question that waits, or one that does not.
func (w *world) decide() {
	s := w.evidence
	if len(s.approvals) == 0 {
		w.work()
		return
	}
	a := pick(w, s.approvals)
	for range 4 {
		if a.state == holdpoint.ApprovalPending {
			break
		}
		a = pick(w, s.approvals)
	}
	who := pick(w, []string{"ana", "ana", "ben", "cy", "dora", "dora", "eve"})
	decision := pick(w, []string{"approve", "approve", "approve", "approve", "approve", "reject", "send_back"})
	if a.kind == "review" && w.chance(700) {
		decision = pick(w, []string{"reject", "send_back"})
	}
	digest, stale := a.digest, w.chance(60)
	if stale {
		digest = "0" + digest[1:]
		if digest == a.digest {
			digest = "1" + digest[1:]
		}
	}
	body := map[string]any{"decision": decision, "digest": digest, "reason": secret + " reason"}
	w.say("%s decides %s about %s%s", who, decision, w.name(a.run.id), map[bool]string{true: " with a stale digest"}[stale])
	answered := func(c *call) {
		if !c.acknowledged || c.status >= 500 {
			return
		}
		who := c.who
		s.follow()
		j := w.jobOf(a.run)
		mayNot := who == "eve" || j != nil && j.workflow == "refund" && j.by == who
		if c.status < 300 && (mayNot || stale) {
			w.broken("%s decided about %s, and must not (stale %v)", who, w.name(a.run.id), stale)
		}
		if mayNot && c.status == http.StatusForbidden {
			w.reach("a decision was refused")
		}
		if c.status == http.StatusConflict {
			w.reach("a decision came too late or was stale")
		}
		if c.status < 300 {
			var d engine.DecisionAnswer
			c.into(&d)
			if e, known := s.decisions[d.Decision.ID]; !known || e.Digest != d.Decision.Digest || e.Person != w.base.people[who] {
				w.broken("I12: a decision about %s was answered of which nothing is written", w.name(a.run.id))
			}
		}
	}
	if !stale && w.chance(60) {
		w.decideOnPage(who, a, decision)
		return
	}
	target := "/v1/approvals/" + a.id + "/decisions"
	w.ask(who, "POST", target, body, answered)
	if w.chance(100) { // a double click, or somebody else at the same moment
		if w.chance(500) {
			who = pick(w, []string{"ana", "dora"})
		}
		w.say("and %s again", who)
		w.ask(who, "POST", target, body, answered)
	}
}

// decideOnPage opens the page of a question in the console and presses a button, where the page has one.
func (w *world) decideOnPage(who string, a *approval, decision string) {
	target := "/console/approvals/" + a.id
	w.ask(who, http.MethodGet, target, nil, func(c *call) {
		nonce := hidden.FindStringSubmatch(string(c.body))
		if !c.acknowledged || c.status != http.StatusOK || nonce == nil {
			return
		}
		form := url.Values{"nonce": {nonce[1]}, "digest": {a.digest}, "decision": {decision}, "reason": {secret}}
		w.post(who, target, form, func(c *call) {
			j := w.jobOf(a.run)
			if w.evidence.follow(); c.acknowledged && c.status == http.StatusSeeOther {
				w.reach("a decision on a page")
				if a.state == holdpoint.ApprovalPending || who == "eve" || j != nil && j.workflow == "refund" && j.by == who {
					w.broken("a decision of %s about %s on a page, which is %s", who, w.name(a.run.id), a.state)
				}
			}
		})
	})
}

// hidden finds the nonce of a decision's form.
var hidden = regexp.MustCompile(`name="nonce" value="([^"]+)">\s*<input type="hidden" name="digest"`)

// elapse lets time pass.
func (w *world) elapse() {
	d := pick(w, []time.Duration{100 * time.Millisecond, 2 * time.Second, 2 * time.Second, 6 * time.Second, 15 * time.Second, 15 * time.Second, 40 * time.Second,
		time.Minute, time.Minute, 3 * time.Minute, 11 * time.Minute, 30 * time.Minute, 3 * time.Hour})
	if d = min(d, 30*w.poll); w.chance(150) {
		d = w.poll
	}
	w.say("%s pass", d)
	w.advance(d)
}

// stepClock moves the store's clock against the bubble's.
func (w *world) stepClock() {
	d := time.Duration(w.rng.IntN(10_001)-5_000) * time.Millisecond
	w.say("the store's clock is %s ahead", d)
	w.skew.Store(int64(d))
	w.reach("fault: clock step")
}
