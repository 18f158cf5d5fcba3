package simtest

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
)

// shadow is what stands according to the evidence alone. Each event is held to the transition tables and to the
// invariants as it is read, in the order of commits; afterwards every row must be what the events have made of it (I6).
type shadow struct {
	w         *world
	last      int64 // rowid of the last event read
	seqs      map[string]int64
	runs      []*run // in the order of their first event
	runByID   map[string]*run
	approvals []*approval
	approval  map[string]*approval
	effects   []*effect
	effect    map[string]*effect
	decisions map[string]event // by id
	switches  map[string]bool
	policy    string
	moved     time.Time // when the policy was last activated, by the store's clock
	granted   map[string]bool
	revoked   map[string]time.Time // when a person last lost a role or the account
	disabled  map[string]bool
}

type run struct {
	id, key, workflow    string
	state                holdpoint.RunState
	reason               holdpoint.Reason
	version              int64
	owner                string
	fingerprint          string
	expires              time.Time
	claims               []claim
	steps                map[string]holdpoint.StepState
	revision             int
	rejected, duplicates int
	replaced             bool
	noted                bool // as claimable
	due                  time.Time
	policy               string
}

// claim is one lease that was given.
type claim struct {
	owner   string
	version int64
}

type approval struct {
	id      string
	run     *run
	digest  string
	kind    string
	policy  string
	rev     int
	state   holdpoint.ApprovalState
	version int64
	until   time.Time
	by      string // the person whose decision made it approved
}

type effect struct {
	id, slot, typ, connector, cv string
	payload                      string // hash
	run                          *run
	approval                     *approval
	state                        holdpoint.EffectState
	version                      int64
	hold                         holdpoint.Hold
	executeBy                    time.Time
	leased                       time.Time
	attempts                     []*attempt
	possibly                     bool // as the events say
	maybe                        bool // as the attempts say: one of them may have been accepted, and nothing has proved otherwise
	accepted                     bool // as an answer says, however late
	first                        time.Time
	word                         holdpoint.Verdict // a person's, if there was one
}

type attempt struct {
	id       string
	number   int
	wire     string
	open     bool
	requests int
}

// event is one line of evidence as it stands in the store.
type event struct {
	row          int64
	tenant, run  string
	seq          int64
	typ          string
	at           time.Time
	kind, who    string
	Approval     string                 `json:"approval_id"`
	Effect       string                 `json:"effect_id"`
	Attempt      string                 `json:"attempt_id"`
	Person       string                 `json:"person_id"`
	Decision     string                 `json:"decision"`
	DecisionID   string                 `json:"decision_id"`
	Digest       string                 `json:"digest"`
	Policy       string                 `json:"policy_version"`
	From         string                 `json:"from"`
	To           string                 `json:"to"`
	Trigger      string                 `json:"trigger"`
	Reason       holdpoint.Reason       `json:"reason"`
	VersionText  json.RawMessage        `json:"version"`
	Version      int64                  `json:"-"`
	Revision     int                    `json:"draft_revision"`
	Owner        string                 `json:"owner"`
	Fingerprint  string                 `json:"fingerprint"`
	How          string                 `json:"how"`
	Recovered    string                 `json:"recovered_from"`
	LeaseExpires time.Time              `json:"lease_expires_at"`
	Expires      time.Time              `json:"expires_at"`
	ExecuteBy    time.Time              `json:"execute_by"`
	ApproveBy    time.Time              `json:"approve_by"`
	RetryAt      *time.Time             `json:"retry_at"`
	Kind         string                 `json:"kind"`
	Slot         string                 `json:"slot"`
	Type         string                 `json:"type"`
	Connector    string                 `json:"connector"`
	ConnectorV   string                 `json:"connector_version"`
	PayloadHash  string                 `json:"payload_hash"`
	Hold         holdpoint.Hold         `json:"hold"`
	Possibly     bool                   `json:"possibly_committed"`
	Number       int                    `json:"number"`
	Wire         string                 `json:"wire_hash"`
	Result       holdpoint.Result       `json:"result"`
	Class        holdpoint.FailureClass `json:"failure_class"`
	State        string                 `json:"state"`
	Verdict      holdpoint.Verdict      `json:"verdict"`
	Scope        string                 `json:"scope"`
	On           bool                   `json:"on"`
	Role         string                 `json:"role"`
	Step         string                 `json:"step"`
	Disabled     bool                   `json:"disabled"`
	Created      bool                   `json:"created"`
}

func newShadow(w *world) *shadow {
	return &shadow{w: w, seqs: map[string]int64{}, runByID: map[string]*run{}, approval: map[string]*approval{}, effect: map[string]*effect{},
		decisions: map[string]event{}, switches: map[string]bool{}, granted: map[string]bool{}, revoked: map[string]time.Time{}, disabled: map[string]bool{}}
}

// follow reads the evidence written since it was last called, and gives the number of events.
func (s *shadow) follow() int {
	w := s.w
	rows, err := w.read.Query("SELECT rowid, tenant, run_id, run_seq, type, at, actor_kind, actor_id, data FROM events WHERE rowid > ? ORDER BY rowid", s.last)
	if err != nil {
		w.broken("the evidence cannot be read: %v", err)
	}
	var fresh []event
	for rows.Next() {
		var e event
		var at int64
		var data []byte
		if err := rows.Scan(&e.row, &e.tenant, &e.run, &e.seq, &e.typ, &at, &e.kind, &e.who, &data); err != nil {
			w.broken("an event cannot be read: %v", err)
		}
		if err := json.Unmarshal(data, &e); err != nil {
			w.broken("the data of %s cannot be read: %v", e.typ, err)
		}
		e.at = time.UnixMicro(at)
		_ = json.Unmarshal(e.VersionText, &e.Version) // that of a policy or connector is a text
		w.clean("evidence", data)
		fresh = append(fresh, e)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		w.broken("the evidence cannot be read: %v", err)
	}
	for _, e := range fresh {
		s.last = e.row
		s.take(e)
	}
	return len(fresh)
}

// take holds one event to what stood before it.
func (s *shadow) take(e event) {
	w := s.w
	s.seqs[e.run]++
	if e.seq != s.seqs[e.run] {
		w.broken("I6: %s of %s has number %d, want %d", e.typ, w.name(e.run), e.seq, s.seqs[e.run])
	}
	if e.run != "" || s.policy != "" {
		w.say("      %s %s %s%s%s %s→%s %s%s", w.name(e.run), e.typ, e.Slot, e.Scope, e.Role, e.From, e.To, e.Trigger, e.Reason)
	}
	switch {
	case e.run == "":
		s.tenantEvent(e)
	case e.Effect != "":
		s.effectEvent(e)
	case e.Step != "":
		s.stepEvent(e)
	case e.DecisionID != "":
		s.decided(e)
	case e.Approval != "":
		s.approvalEvent(e)
	default:
		s.runEvent(e)
	}
}

// step notes a transition and holds it to its table.
func move[S ~string](s *shadow, what string, table []holdpoint.Transition[S], e event, stood S, from, to S, trigger string) {
	if from != stood {
		s.w.broken("I5: %s of %s says %q→%q, but it was %q", e.typ, s.w.name(e.run), from, to, stood)
	}
	if !holdpoint.Allowed(table, from, to, trigger) {
		s.w.broken("%s: no %s goes %q→%q by %s (%s)", e.typ, what, from, to, trigger, s.w.name(e.run))
	}
	s.w.reach(transitionName(what, from, to, trigger))
}

func transitionName[S ~string](what string, from, to S, trigger string) string {
	return "transition: " + what + " " + string(from) + "→" + string(to) + " " + trigger
}

func (s *shadow) tenantEvent(e event) {
	switch e.typ {
	case "switch.changed":
		s.switches[e.Scope] = e.On
	case "policy.activated":
		s.policy, s.moved = e.To, e.at
	case "role.granted":
		s.granted[e.Person+e.Role] = true
	case "role.revoked":
		delete(s.granted, e.Person+e.Role)
		s.revoked[e.Person] = e.at
	case "person.disabled":
		s.disabled[e.Person] = true
		s.revoked[e.Person] = e.at
	case "person.enabled":
		delete(s.disabled, e.Person)
	}
	s.w.reach("event: " + e.typ)
}

// runOf finds the run of an event; every run begins with a claim or as a correction.
func (s *shadow) runOf(e event) *run {
	r := s.runByID[e.run]
	if r == nil {
		r = &run{id: e.run, steps: map[string]holdpoint.StepState{}}
		if err := s.w.read.QueryRow("SELECT workflow, key FROM runs WHERE id = ?", e.run).Scan(&r.workflow, &r.key); err != nil {
			s.w.broken("an event of a run that cannot be read: %v", err)
		}
		s.runs = append(s.runs, r)
		s.runByID[e.run] = r
	}
	return r
}

func (s *shadow) runEvent(e event) {
	w, r := s.w, s.runOf(e)
	turn := func(from, to holdpoint.RunState, trigger string, version int64) {
		if r.state.Terminal() {
			w.broken("%s moves %s, which has ended", e.typ, w.name(r.id))
		}
		move(s, "run", holdpoint.RunTransitions, e, r.state, from, to, trigger)
		if version != r.version+1 {
			w.broken("I5: %s of %s has version %d after %d", e.typ, w.name(r.id), version, r.version)
		}
		r.state, r.version, r.reason, r.noted = to, version, e.Reason, false
	}
	switch e.typ {
	case "run.claimed":
		trigger := "recover"
		if e.How == "new" {
			trigger = "claim"
		}
		if r.state == holdpoint.RunProcessing && e.at.Before(r.expires) {
			w.broken("I5: %s was claimed while its lease was live", w.name(r.id))
		}
		if r.state == holdpoint.RunFailedRetryable && e.at.Before(r.due) {
			w.broken("%s was claimed before its time", w.name(r.id))
		}
		if r.fingerprint == "" {
			r.fingerprint = e.Fingerprint
		}
		if r.fingerprint != e.Fingerprint {
			w.broken("%s was claimed with another payload", w.name(r.id))
		}
		turn(r.state, holdpoint.RunProcessing, trigger, e.Version)
		r.owner, r.expires, r.policy = e.Owner, e.LeaseExpires, e.Policy
		r.claims = append(r.claims, claim{e.Owner, e.Version})
		return
	case "lease.renewed":
		if r.state != holdpoint.RunProcessing || e.Version != r.version || !e.at.Before(r.expires) {
			w.broken("I5: a lease of %s was renewed that was not live", w.name(r.id))
		}
		r.expires = e.Expires
	case "draft.accepted":
		s.owned(e, r)
		turn(holdpoint.RunState(e.From), holdpoint.RunState(e.To), "hold", e.Version)
		r.revision = e.Revision
	case "draft.rejected":
		s.owned(e, r)
		r.rejected++
	case "run.claimable":
		r.noted = true
	case "run.duplicate":
		r.duplicates++
	case "run.linked":
		if e.Created && r.state == "" { // a correction begins as if it had failed: due now, for anybody to claim
			r.state, r.version, r.due, r.fingerprint = holdpoint.RunFailedRetryable, 1, e.at, e.Fingerprint
		}
	case "run.replaced":
		r.replaced = true
		if e.From != e.To {
			turn(holdpoint.RunState(e.From), holdpoint.RunState(e.To), runTrigger(e), e.Version)
		}
	case "run.cancelled":
		// The effects of an approved run settle it before this event, which then repeats what has been seen.
		if r.version != e.Version {
			turn(holdpoint.RunState(e.From), holdpoint.RunState(e.To), runTrigger(e), e.Version)
		}
	case "run.failed", "run.completed", "run.approved", "run.sent_back", "run.retry":
		if e.kind == holdpoint.ActorMachine {
			s.owned(e, r)
		}
		turn(holdpoint.RunState(e.From), holdpoint.RunState(e.To), runTrigger(e), e.Version)
	default:
		if e.From != "" && e.From != e.To {
			turn(holdpoint.RunState(e.From), holdpoint.RunState(e.To), runTrigger(e), e.Version)
		}
	}
	if e.RetryAt != nil {
		r.due = *e.RetryAt
	}
	w.reach("event: " + e.typ)
}

// owned holds a work call to the lease under which it was made.
func (s *shadow) owned(e event, r *run) {
	if r.state != holdpoint.RunProcessing || !e.at.Before(r.expires) {
		s.w.broken("I5: %s of %s without a live lease (%s until %s)", e.typ, s.w.name(r.id), r.state, r.expires)
	}
}

// runTrigger names what moved a run: events of runs say from where to where and by whom.
func runTrigger(e event) string {
	from, to := holdpoint.RunState(e.From), holdpoint.RunState(e.To)
	system := e.kind == holdpoint.ActorSystem
	switch {
	case e.Reason == holdpoint.ReasonReplaced:
		return "replace"
	case from == holdpoint.RunApproved:
		return "settle"
	case from == holdpoint.RunAwaitingHuman && to == holdpoint.RunFailedTerminal:
		return map[holdpoint.Reason]string{holdpoint.ReasonRejected: "reject", holdpoint.ReasonExpired: "expire"}[e.Reason] + map[bool]string{true: "withdraw"}[e.Reason == holdpoint.ReasonWithdrawn || e.Reason == holdpoint.ReasonCancelled]
	case from == holdpoint.RunAwaitingHuman && to == holdpoint.RunFailedRetryable:
		return "send_back"
	case from == holdpoint.RunAwaitingHuman:
		return "approve"
	case from == holdpoint.RunFailedRetryable && system:
		return "budget_over"
	case from == holdpoint.RunFailedRetryable:
		return "cancel"
	case to == holdpoint.RunFailedTerminal && system:
		return "steal_cap"
	case to == holdpoint.RunFailedTerminal:
		return "give_up"
	case to == holdpoint.RunFailedRetryable:
		return "fail"
	}
	return "complete"
}

func (s *shadow) stepEvent(e event) {
	r := s.runOf(e)
	trigger := map[string]string{"step.begun": "begin", "step.uncertain": "lose", "step.finished": "finish", "step.failed": "fail",
		"step.resolved": map[bool]string{true: "resolve_done", false: "resolve_not_done"}[e.To == string(holdpoint.StepCompleted)]}[e.typ]
	move(s, "step", holdpoint.StepTransitions, e, r.steps[e.Step], holdpoint.StepState(e.From), holdpoint.StepState(e.To), trigger)
	r.steps[e.Step] = holdpoint.StepState(e.To)
	if e.typ != "step.resolved" {
		s.owned(e, r)
	}
}

func (s *shadow) decided(e event) {
	w, a := s.w, s.approval[e.Approval]
	switch {
	case a == nil:
		w.broken("a decision about no question")
	case a.digest != e.Digest:
		w.broken("I4: a decision binds to another digest than its question (%s)", w.name(e.run))
	case a.state != holdpoint.ApprovalPending:
		w.broken("I4: a decision about a question that is %s (%s)", a.state, w.name(e.run))
	case !e.at.Before(a.until):
		w.broken("a decision after its time (%s)", w.name(e.run))
	case a.kind == "review" && e.Decision == string(holdpoint.DecisionApprove):
		w.broken("a review was approved (%s)", w.name(e.run))
	}
	if j := w.jobOf(a.run); j != nil && (e.Person == w.base.people["eve"] || e.Person == w.base.people["ops"] || j.workflow == "refund" && e.Person == w.base.people[j.by]) {
		w.broken("somebody decided who may not (%s)", w.name(e.run))
	}
	if e.Decision == string(holdpoint.DecisionApprove) {
		a.by = e.Person
	}
	s.decisions[e.DecisionID] = e
	w.reach("decision: " + e.Decision)
}

func (s *shadow) approvalEvent(e event) {
	a := s.approval[e.Approval]
	if e.typ == "approval.created" {
		a = &approval{id: e.Approval, run: s.runOf(e), digest: e.Digest, kind: e.Kind, policy: e.Policy, rev: e.Revision, version: 1, state: holdpoint.ApprovalPending, until: e.ApproveBy}
		s.w.reach(transitionName("approval", "", holdpoint.ApprovalPending, "create"))
		s.approval[a.id], s.approvals = a, append(s.approvals, a)
		return
	}
	if e.To == "" || a == nil {
		return
	}
	to := holdpoint.ApprovalState(e.To)
	trigger := map[holdpoint.ApprovalState]string{holdpoint.ApprovalApproved: "approve", holdpoint.ApprovalRejected: "reject", holdpoint.ApprovalSentBack: "send_back",
		holdpoint.ApprovalExpired: "expire", holdpoint.ApprovalWithdrawn: "withdraw", holdpoint.ApprovalInvalidated: "invalidate"}[to]
	move(s, "approval", holdpoint.ApprovalTransitions, e, a.state, holdpoint.ApprovalState(e.From), to, trigger)
	if e.Version != a.version+1 {
		s.w.broken("I5: %s has version %d after %d", e.typ, e.Version, a.version)
	}
	a.state, a.version = to, e.Version
}

// allowed reports whether the switches permit an effect.
func (s *shadow) allowed(x *effect) bool {
	if !s.switches["global"] || !s.switches["tenant"] {
		return false
	}
	for _, scope := range []string{"workflow:" + x.run.workflow, "connector:" + x.connector, "type:" + x.typ} {
		if on, known := s.switches[scope]; known && !on {
			return false
		}
	}
	return true
}

// approvedOf gives the approved question of a run's latest revision.
func (s *shadow) approvedOf(r *run) *approval {
	for _, a := range slices.Backward(s.approvals) {
		if a.run == r {
			return a
		}
	}
	return nil
}

// sweepable reports whether time has moved anything that a sweep looks for; late says that budgets may be over, too, which
// no event tells.
func (s *shadow) sweepable(now time.Time, late bool) bool {
	for _, r := range s.runs {
		waits := r.state == holdpoint.RunProcessing && !now.Before(r.expires) || r.state == holdpoint.RunFailedRetryable && !now.Before(r.due)
		if waits && (late || !r.noted) || r.duplicates > 20 {
			return true
		}
	}
	for _, a := range s.approvals {
		if a.state == holdpoint.ApprovalPending && !now.Before(a.until) {
			return true
		}
	}
	return false
}

// free reports whether an effect may be leased as far as switches and order go.
func (s *shadow) free(x *effect) bool {
	y := s.before(x)
	return s.allowed(x) && (y == nil || y.state == holdpoint.EffectCompleted)
}
