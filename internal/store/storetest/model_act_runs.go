package storetest

import (
	"fmt"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// someRun draws a run, mostly one in these states, seldom one that is not there.
func (w *twin) someRun(states ...holdpoint.RunState) holdpoint.Run {
	all := w.model.sorted(modelTenants[0])
	var fit []holdpoint.Run
	for _, r := range all {
		for _, s := range states {
			if r.Run.State == s {
				fit = append(fit, r.Run)
			}
		}
	}
	nobody := holdpoint.Run{Tenant: modelTenants[0], ID: "run-none"}
	switch {
	case w.seldom("another tenant", 24) && len(all) > 0:
		return holdpoint.Run{Tenant: modelTenants[1], ID: all[0].Run.ID}
	case len(fit) > 0 && !w.seldom("any state", 6):
		return pick(w, "run", fit...)
	case len(all) > 0:
		return pick(w, "run", all...).Run
	}
	return nobody
}

// fence is that of a run's lease for a call of some kind, seldom one that was given before or is made up.
func (w *twin) fence(kind string, run holdpoint.Run) store.Fence {
	f := store.Fence{Tenant: run.Tenant, RunID: run.ID, Owner: run.LeaseOwner, Version: run.Version, ExecutionID: run.ExecutionID}
	if len(w.fences) > 0 && w.seldom("old fence", 5) {
		f = pick(w, "fence", w.fences...)
	}
	if w.seldom("another execution", 12) {
		f.ExecutionID = pick(w, "execution", "", "e9")
	}
	f.Call = ""
	if pick(w, "call", true, false) {
		f.Call = w.id(kind)
	}
	if last, called := w.called[kind]; called && w.seldom("lost answer", 4) {
		f = last
	}
	w.called[kind] = f
	return f
}

// someClaim draws a claim of one of a few keys.
func (w *twin) someClaim(keys ...string) store.Claim {
	key := pick(w, "key", keys...)
	c := store.Claim{RunID: w.id("run"), Tenant: w.tenant(), Scope: "refund", Workflow: "refund", Key: key, KeyHMAC: "hmac-" + key,
		Operation:   pick(w, "operation", nil, &holdpoint.Operation{Source: "shop", Record: "record-" + key, Action: "refund"}),
		Fingerprint: pick(w, "fingerprint", "f1", "f1", "f1", "f1", "f1", "f2"), FingerprintRule: pick(w, "rule", "r1", "r1", "r1", "r1", "r1", "r1", "r2"),
		Ignore: []string{"/sent_at"}, Owner: pick(w, "owner", "w1", "w2"), OwnerExplicit: pick(w, "explicit", true, false),
		ExecutionID: pick(w, "execution", "e1", "e2", ""), Lease: pick(w, "lease", time.Minute, 20*time.Second), Cap: pick(w, "cap", 10*time.Minute, 30*time.Second),
		AttemptLimit: pick(w, "attempts", 3, 1, 2), Budget: pick(w, "budget", time.Hour, 5*time.Minute), StealCap: pick(w, "steals", 2, 0, 1),
		PolicyHash: pick(w, "policy", "p1", "p2"), TriggerSource: "webhook", WorkflowVersion: "7", DeliveryID: w.id("delivery"),
		Payload: []byte("payload"), Initiator: pick(w, "initiator", nil, []byte("caller")), ResumeURL: []byte("url"), RunKey: []byte("key"),
		Extra: pick(w, "extra", 0, 0, 0, 1, 23), Who: machine}
	if w.seldom("another workflow", 8) {
		c.Workflow, c.Scope = "order", "order"
	}
	return c
}

// someMessages are none or one.
func (w *twin) someMessages(runID string) []store.Message {
	if !w.seldom("message", 3) {
		return nil
	}
	return []store.Message{{Data: []byte("data"), MessageRecord: holdpoint.MessageRecord{ID: w.id("message"), Tenant: modelTenants[0], RunID: runID,
		Type: "approval.requested", Channel: "email", Email: "jane@acme.example"}}}
}

// claim asks for claims and remembers the fences that they gave.
func (w *twin) claim(claims ...store.Claim) []store.ClaimResult {
	results, _ := ask(w, "ClaimRuns", func(s store.Store) ([]store.ClaimResult, error) { return s.ClaimRuns(w.ctx, claims) })
	for i, r := range results {
		if r.Outcome == holdpoint.Claimed {
			w.fences = append(w.fences, store.Fence{Tenant: r.Run.Tenant, RunID: r.Run.ID, Owner: claims[i].Owner, Version: r.Lease.Version, ExecutionID: claims[i].ExecutionID})
		}
	}
	return results
}

// plan is a draft of the run's next revision with some effects, of which the last may wait for the first.
func (w *twin) plan(f store.Fence, revision, effects int) store.Draft {
	id := w.id("approval")
	d := store.Draft{Fence: f, Output: []byte("output"), ApproveBy: pick(w, "approve by", 24*time.Hour, 10*time.Minute), Who: machine,
		Draft: holdpoint.Draft{Revision: revision, OutputHash: "output-" + id, PolicyHash: "p1", Model: holdpoint.Model{Name: "m", Revision: "r"}},
		Approval: holdpoint.Approval{ID: id, Workflow: "refund", Revision: revision, Digest: "digest-" + id, PolicyHash: "p1", Kind: "draft", Why: "gate",
			Roles: []string{"approver"}, Quorum: pick(w, "quorum", 1, 1, 1, 1, 1, 1, 2), Assurance: "link", ExecuteWithin: holdpoint.Duration(pick(w, "execute within", time.Hour, 5*time.Minute)),
			Allowed: pick(w, "allowed", everyDecision, everyDecision, everyDecision, everyDecision[1:])},
		Data: map[string]any{"gate": "approve_before_act"}, Messages: w.someMessages(f.RunID)}
	for _, p := range pick(w, "asked", nil, []holdpoint.Person{jane}, []holdpoint.Person{jane, joe}) {
		d.Challenges = append(d.Challenges, holdpoint.Challenge{ID: w.id("challenge"), Email: p.Email, Channel: "email"})
	}
	for i := range effects {
		kind := [][3]string{{"mail", "mailer", "smtp://mail"}, {"note", "crm", "https://crm"}}[i%2]
		e := store.PlannedEffect{Target: []byte("target"), Payload: fmt.Appendf(nil, "payload %d", i), EffectSpec: holdpoint.EffectSpec{ID: w.id("effect"), RunID: f.RunID,
			Workflow: "refund", Revision: revision, Order: i, Slot: fmt.Sprint("slot", i), Type: kind[0], Connector: kind[1], ConnectorVersion: "v1", Provider: kind[2],
			Consequence: "customer_message", TargetIndex: fmt.Sprint("target", i), PayloadHash: "hash", ProviderKey: w.id("pk"), Reference: "ref"}}
		if i == effects-1 && i > 0 && pick(w, "after", true, false) {
			e.After = []string{"slot0"}
		}
		d.Effects = append(d.Effects, e)
	}
	return d
}

var everyDecision = []holdpoint.Decision{holdpoint.DecisionApprove, holdpoint.DecisionReject, holdpoint.DecisionSendBack}

func actClaimRuns(w *twin) {
	claims := []store.Claim{w.someClaim("k1", "k2", "k3", "k4")}
	for _, key := range pick(w, "more", nil, nil, []string{"k5"}, []string{"k6", "k5"}) {
		claims = append(claims, w.someClaim(key))
	}
	w.claim(claims...)
}

func actRenewLease(w *twin) {
	f, extend := w.fence("renew", w.someRun(holdpoint.RunProcessing)), pick(w, "extend", time.Second, 2*time.Minute, time.Hour)
	_, _ = ask(w, "RenewLease", func(s store.Store) (holdpoint.Lease, error) { return s.RenewLease(w.ctx, f, extend) })
}

func actBeginStep(w *twin) {
	f := w.fence("begin", w.someRun(holdpoint.RunProcessing))
	b := store.StepBegin{Name: pick(w, "step", "s1", "s2"), SideEffect: pick(w, "side effect", false, true), InputHash: pick(w, "input", "i1", "i1", "i1", "i2"), Who: machine}
	_, _ = ask(w, "BeginStep", func(s store.Store) (store.StepResult, error) { return s.BeginStep(w.ctx, f, b) })
}

func actFinishStep(w *twin) {
	f := w.fence("finish", w.someRun(holdpoint.RunProcessing))
	e := store.StepFinish{Name: pick(w, "step", "s1", "s2"), Result: pick(w, "result", []byte("result"), nil), ResultHash: pick(w, "hash", "h1", "h2"),
		Class: pick(w, "class", "", "", holdpoint.ClassModelTimeout), Who: machine}
	_, _ = ask(w, "FinishStep", func(s store.Store) (holdpoint.Step, error) { return s.FinishStep(w.ctx, f, e) })
}

func actResolveStep(w *twin) {
	run := w.someRun(holdpoint.RunProcessing)
	q := store.StepResolve{Tenant: run.Tenant, RunID: run.ID, Name: pick(w, "step", "s1", "s2"), Done: pick(w, "done", true, false), Result: []byte("told"), ResultHash: "h3", Who: operator}
	_, _ = ask(w, "ResolveStep", func(s store.Store) (holdpoint.Step, error) { return s.ResolveStep(w.ctx, q) })
}

func actRejectDraft(w *twin) {
	run := w.someRun(holdpoint.RunProcessing)
	f, d := w.fence("reject", run), store.DraftRejection{Class: holdpoint.ClassSchema, Codes: []string{"required"}, Terminal: w.seldom("terminal", 3), Messages: w.someMessages(run.ID), Who: machine}
	if d.Terminal {
		d.Reason = holdpoint.ReasonInvalidOutput
	}
	_, _ = ask(w, "RejectDraft", func(s store.Store) (holdpoint.Run, error) { return s.RejectDraft(w.ctx, f, d) })
}

func actHoldDraft(w *twin) {
	run := w.someRun(holdpoint.RunProcessing)
	d := w.plan(w.fence("hold", run), run.Revision+pick(w, "revision", 1, 1, 1, 1, 1, 2), pick(w, "effects", 1, 2, 3, 0))
	w.hold(d)
}

func (w *twin) hold(d store.Draft) {
	_, _ = ask(w, "HoldDraft", func(s store.Store) (pair[holdpoint.Run, holdpoint.Approval], error) {
		return two(s.HoldDraft(w.ctx, d))
	})
}

func actEndWork(w *twin) {
	run := w.someRun(holdpoint.RunProcessing)
	f := w.fence("end", run)
	e := store.WorkEnd{State: pick(w, "end", holdpoint.RunFailedRetryable, holdpoint.RunFailedRetryable, holdpoint.RunCompleted, holdpoint.RunFailedTerminal, holdpoint.RunApproved),
		RetryIn: pick(w, "retry in", 0, time.Minute, 2*time.Hour), Class: holdpoint.ClassModelTimeout, Messages: w.someMessages(run.ID), Who: machine}
	switch e.State {
	case holdpoint.RunCompleted:
		e.Class, e.Result = "", pick(w, "result", nil, []byte("result"))
	case holdpoint.RunFailedTerminal:
		e.Reason, e.Text = holdpoint.ReasonQuarantine, pick(w, "text", nil, []byte("text"))
	}
	_, _ = ask(w, "EndWork", func(s store.Store) (holdpoint.Run, error) { return s.EndWork(w.ctx, f, e) })
}

func actReplaceRun(w *twin) {
	old := w.someRun(holdpoint.RunAwaitingHuman, holdpoint.RunFailedRetryable, holdpoint.RunFailedTerminal, holdpoint.RunCompleted, holdpoint.RunProcessing)
	p := store.Replacement{Tenant: old.Tenant, OldRunID: old.ID, New: w.someClaim("k1", "k2", "c1", "c2", "c3"), ReasonText: []byte("why"), Who: operator}
	p.New.Tenant, p.New.Owner, p.New.ExecutionID, p.New.Extra = old.Tenant, "", "", 0
	type replaced struct {
		Old, New holdpoint.Run
		Created  bool
	}
	_, _ = ask(w, "ReplaceRun", func(s store.Store) (a replaced, err error) {
		a.Old, a.New, a.Created, err = s.ReplaceRun(w.ctx, p)
		return a, err
	})
}

func actCancelRun(w *twin) {
	run := w.someRun(holdpoint.RunFailedRetryable, holdpoint.RunAwaitingHuman, holdpoint.RunApproved)
	_, _ = ask(w, "CancelRun", func(s store.Store) (holdpoint.Run, error) {
		return s.CancelRun(w.ctx, run.Tenant, run.ID, []byte("why"), operator)
	})
}

func actSweepRuns(w *twin) {
	_, _ = ask(w, "SweepRuns", func(s store.Store) ([]store.Swept, error) {
		return sortedBy(s.SweepRuns(w.ctx, 100))(func(s store.Swept) string { return s.What + s.Run.ID })
	})
}

func actWorkDurations(w *twin) {
	limit := pick(w, "limit", 100, 1)
	_, _ = ask(w, "WorkDurations", func(s store.Store) ([]time.Duration, error) {
		return s.WorkDurations(w.ctx, modelTenants[0], "refund", limit)
	})
}

func actNow(w *twin) {
	w.advance(pick(w, "time", time.Second, 10*time.Second, 30*time.Second, time.Minute, 5*time.Minute, 5*time.Minute, 30*time.Minute, 25*time.Hour))
	_, _ = ask(w, "Now", func(s store.Store) (time.Time, error) { return s.Now(w.ctx) })
}
