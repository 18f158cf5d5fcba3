package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/connector/mirror"
)

// event is a real-shaped delivery: what identifies it stays, delivered_at differs each time.
func (s *stage) event(id string) map[string]any {
	return map[string]any{"id": id, "subject": "Where is my money?", "delivered_at": time.Now().UTC().Format(time.RFC3339Nano),
		"created_by": "jane@acme.example", "customer": map[string]any{"email": "jane@acme.example", "id": "c-1"}}
}

func (s *stage) claim(ctx context.Context, workflow, key string, event any) (claimed, error) {
	var c claimed
	var err error
	c.status, err = s.machine.call(ctx, "POST", "/v1/claims", map[string]any{"workflow": workflow, "key": key, "payload": event,
		"trigger": map[string]any{"source": "demo"}}, &c)
	if err == nil && c.Outcome == "" {
		err = fmt.Errorf("claim of %s answered %d without an outcome", key, c.status)
	}
	s.deliveries++
	if c.Outcome == holdpoint.Claimed {
		s.keys[key] = c.Run.ID
	}
	return c, err
}

func (s *stage) draft(ctx context.Context, c claimed, output string) (drafted, error) {
	var d drafted
	var err error
	d.status, err = s.machine.call(ctx, "POST", "/v1/runs/"+c.Run.ID+"/draft", map[string]any{"owner": c.Lease.Owner, "version": c.Lease.Version,
		"output": json.RawMessage(output), "model": map[string]any{"endpoint_class": "local", "name": "demo-model", "revision": "1", "finish_reason": "stop", "prompt_version": "7"}}, &d)
	return d, err
}

// work claims an event and submits a draft for it.
func (s *stage) work(ctx context.Context, workflow, key, output string) (claimed, drafted, error) {
	c, err := s.claim(ctx, workflow, key, s.event(key))
	if err != nil {
		return c, drafted{}, err
	}
	if c.Outcome != holdpoint.Claimed {
		return c, drafted{}, fmt.Errorf("%s answered %s", key, c.Outcome)
	}
	d, err := s.draft(ctx, c, output)
	if err == nil && d.Approval == nil {
		err = fmt.Errorf("the draft of %s answered %d %s", key, d.status, d.Outcome)
	}
	return c, d, err
}

func (s *stage) decide(ctx context.Context, a *holdpoint.Approval, decision holdpoint.Decision, reason string) error {
	return s.ana.expect(ctx, 200, "POST", "/v1/approvals/"+a.ID+"/decisions", map[string]any{"decision": decision, "digest": a.Digest, "reason": reason}, nil)
}

func (s *stage) switches(ctx context.Context, on bool, reason string) error {
	for _, scope := range []string{"global", "tenant"} {
		if err := s.otto.expect(ctx, 200, "PUT", "/v1/switches/"+scope, map[string]any{"on": on, "reason": reason}, nil); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) run(ctx context.Context, id string) (runView, error) {
	var v runView
	return v, s.otto.expect(ctx, 200, "GET", "/v1/runs/"+id, nil, &v)
}

// until polls a run until it is as expected.
func (s *stage) until(ctx context.Context, id, what string, ok func(runView) bool) (runView, error) {
	ctx, cancel := context.WithTimeout(ctx, 25*time.Second)
	defer cancel()
	for {
		v, err := s.run(ctx, id)
		if err != nil {
			return v, fmt.Errorf("waiting for %s: %w", what, err)
		}
		if ok(v) {
			return v, nil
		}
		select {
		case <-ctx.Done():
			return v, fmt.Errorf("%s did not come about: the run is %s", what, v.State)
		case <-time.After(25 * time.Millisecond):
		}
	}
}

func state(want holdpoint.RunState) func(runView) bool {
	return func(v runView) bool { return v.State == want }
}

func effect(want holdpoint.EffectState) func(runView) bool {
	return func(v runView) bool {
		return len(v.Effects) == 1 && !v.Effects[0].Planned && v.Effects[0].State == want
	}
}

// play runs every story and gathers what the report says about each invariant.
func (s *stage) play(ctx context.Context) (Report, error) {
	r := newReport()
	if err := s.stories(ctx, r); err != nil {
		return *r, err
	}
	if err := s.audit(ctx, r); err != nil {
		return *r, err
	}
	return *r, nil
}

func (s *stage) stories(ctx context.Context, r *Report) error {
	// The crash comes first: its recovery takes the time in which the rest is played.
	crashed, err := s.crash(ctx, r)
	if err != nil {
		return fmt.Errorf("kill -9: %w", err)
	}
	for _, story := range []struct {
		name string
		tell func(context.Context, *Report) error
	}{
		{"redelivery", s.redelivery}, {"ten at once", s.tenAtOnce}, {"changed payload", s.changedPayload}, {"repair", s.repair},
		{"stale worker", s.staleWorker}, {"approval by looking", s.scanner}, {"rejection", s.rejection}, {"switch", s.switchedOff},
		{"permission", s.permission}, {"accept then stall", s.stall},
	} {
		if err := story.tell(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", story.name, err)
		}
	}
	v, err := s.until(ctx, crashed, "the uncertain parcel", effect(holdpoint.EffectUnknown))
	if err != nil {
		return err
	}
	sent := s.provider.CountReference(v.Effects[0].Reference)
	r.check("I3", sent == 1, "kill -9 after the provider had accepted: %s, %d request on the wire", v.Effects[0].State, sent)
	return nil
}

// crash kills the server while the provider holds an accepted request, and starts it again.
func (s *stage) crash(ctx context.Context, r *Report) (string, error) {
	if err := s.switches(ctx, true, "the demo begins"); err != nil {
		return "", err
	}
	s.provider.Queue("/parcels", mirror.AcceptThenStall(3*time.Second))
	c, d, err := s.work(ctx, "parcel", "parcel-1", `{"reply":"Parcel for Jane","label":"parcel"}`)
	if err != nil {
		return "", err
	}
	acknowledged, err := s.claim(ctx, "ticket-reply", "ticket-before-crash", s.event("ticket-before-crash"))
	if err != nil {
		return "", err
	}
	if err := s.decide(ctx, d.Approval, holdpoint.DecisionApprove, ""); err != nil {
		return "", err
	}
	for range 400 {
		if s.provider.CountPath("/parcels") == 1 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.server.kill()
	if err := s.server.start(ctx); err != nil {
		return "", err
	}
	v, err := s.run(ctx, acknowledged.Run.ID)
	if err != nil {
		return "", err
	}
	r.check("I12", v.Version == acknowledged.Run.Version && v.State == holdpoint.RunProcessing, "a claim acknowledged before kill -9 stands after it")
	p, err := s.run(ctx, c.Run.ID)
	if err != nil {
		return "", err
	}
	r.check("I12", p.State == holdpoint.RunApproved, "a decision acknowledged before kill -9 stands after it")
	return c.Run.ID, nil
}

func (s *stage) redelivery(ctx context.Context, r *Report) error {
	c, d, err := s.work(ctx, "ticket-reply", "ticket-1", `{"reply":"Your refund is on its way.","label":"refund"}`)
	if err != nil {
		return err
	}
	busy, err := s.claim(ctx, "ticket-reply", "ticket-1", s.event("ticket-1"))
	if err != nil {
		return err
	}
	if err := s.decide(ctx, d.Approval, holdpoint.DecisionApprove, ""); err != nil {
		return err
	}
	v, err := s.until(ctx, c.Run.ID, "the reply", state(holdpoint.RunCompleted))
	if err != nil {
		return err
	}
	again, err := s.claim(ctx, "ticket-reply", "ticket-1", s.event("ticket-1"))
	if err != nil {
		return err
	}
	sent := s.provider.CountReference(v.Effects[0].Reference)
	r.check("I3", busy.Outcome == holdpoint.Duplicate && again.Outcome == holdpoint.Duplicate && sent == 1, "a redelivered ticket is answered %s and %s, and sent once", busy.Outcome, again.Outcome)
	contradiction, err := s.ana.call(ctx, "POST", "/v1/approvals/"+d.Approval.ID+"/decisions", map[string]any{"decision": "reject", "digest": d.Approval.Digest, "reason": "too late"}, nil)
	r.check("I4", contradiction == http.StatusConflict, "a decision that contradicts the standing one gets 409")
	return err
}

func (s *stage) tenAtOnce(ctx context.Context, r *Report) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	counts := map[holdpoint.ClaimOutcome]int{}
	var failed error
	for range 10 {
		wg.Go(func() {
			var c claimed
			_, err := s.machine.call(ctx, "POST", "/v1/claims", map[string]any{"workflow": "order", "key": "order-10", "payload": s.event("order-10")}, &c)
			mu.Lock()
			defer mu.Unlock()
			s.deliveries++
			counts[c.Outcome]++
			if c.Outcome == holdpoint.Claimed {
				s.keys["order-10"] = c.Run.ID
			}
			if err != nil {
				failed = err
			}
		})
	}
	wg.Wait()
	r.check("I5", counts[holdpoint.Claimed] == 1 && counts[holdpoint.Busy] == 9, "ten deliveries at once: %d lease, %d busy", counts[holdpoint.Claimed], counts[holdpoint.Busy])
	return failed
}

func (s *stage) changedPayload(ctx context.Context, r *Report) error {
	changed := s.event("ticket-1")
	changed["subject"] = "Send it to another account"
	c, err := s.claim(ctx, "ticket-reply", "ticket-1", changed)
	if err != nil {
		return err
	}
	v, err := s.run(ctx, s.keys["ticket-1"])
	if err != nil {
		return err
	}
	r.check("I9", c.Outcome == holdpoint.Mismatch && c.status == http.StatusUnprocessableEntity && v.State == holdpoint.RunCompleted && v.Mismatches == 1,
		"a changed payload under a known key is answered %s and changes nothing", c.Outcome)
	unknown, err := s.machine.call(ctx, "POST", "/v1/claims", map[string]any{"workflow": "nobody-wrote-this", "key": "k-1", "payload": map[string]any{}}, nil)
	r.check("I9", unknown == http.StatusNotFound, "a workflow that no policy names is refused")
	return err
}

func (s *stage) repair(ctx context.Context, r *Report) error {
	c, err := s.claim(ctx, "ticket-reply", "ticket-2", s.event("ticket-2"))
	if err != nil {
		return err
	}
	bad, err := s.draft(ctx, c, `"Sure! Here is the JSON you asked for: {\"reply\": \"Hi\"}"`)
	if err != nil {
		return err
	}
	greedy, err := s.draft(ctx, c, `{"reply":"Hi","label":"refund","to":"attacker@evil.example","connector":"carrier"}`)
	if err != nil {
		return err
	}
	good, err := s.draft(ctx, c, `{"reply":"Hi Jane, here is your answer.","label":"refund"}`)
	if err != nil {
		return err
	}
	if good.Approval == nil {
		return fmt.Errorf("the repaired draft answered %d %s", good.status, good.Outcome)
	}
	if err := s.decide(ctx, good.Approval, holdpoint.DecisionApprove, ""); err != nil {
		return err
	}
	v, err := s.until(ctx, c.Run.ID, "the repaired reply", state(holdpoint.RunCompleted))
	if err != nil {
		return err
	}
	evil := s.provider.Count(func(w mirror.Write) bool { return containsText(w.Body, "evil.example") })
	r.check("I7", bad.Outcome == "repair" && bad.RepairPrompt != "" && greedy.Outcome == "repair" && evil == 0 && v.Effects[0].Connector == "mail",
		"prose and a draft that names its own recipient are sent to repair; the mail went where policy says")
	return nil
}

func (s *stage) staleWorker(ctx context.Context, r *Report) error {
	c, err := s.claim(ctx, "ticket-reply", "ticket-3", s.event("ticket-3"))
	if err != nil {
		return err
	}
	status, err := s.machine.call(ctx, "POST", "/v1/runs/"+c.Run.ID+"/draft", map[string]any{"owner": c.Lease.Owner, "version": c.Lease.Version + 1,
		"output": map[string]any{"reply": "late", "label": "refund"}, "model": map[string]any{}}, nil)
	if err != nil {
		return err
	}
	v, err := s.run(ctx, c.Run.ID)
	if err != nil {
		return err
	}
	r.check("I5", status == http.StatusConflict && v.State == holdpoint.RunProcessing, "a worker with another version of the lease is refused")
	r.check("I11", v.LeaseExpiresAt != nil && v.ClaimedAt != nil && v.LeaseExpiresAt.Sub(*v.ClaimedAt) == 5*time.Minute,
		"a lease's begin and end come from one reading of the database's clock")
	return nil
}

// scanner looks at an approval as a mail scanner would, then checks that nothing moved.
func (s *stage) scanner(ctx context.Context, r *Report) error {
	c, d, err := s.work(ctx, "ticket-reply", "ticket-4", `{"reply":"Only a person may release this.","label":"refund"}`)
	if err != nil {
		return err
	}
	before, err := s.run(ctx, c.Run.ID)
	if err != nil {
		return err
	}
	for _, method := range []string{"GET", "HEAD", "GET"} {
		for _, path := range []string{"/approve/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "/console/approvals/" + d.Approval.ID, "/v1/approvals/" + d.Approval.ID} {
			if _, err := s.machine.call(ctx, method, path, nil, nil); err != nil && path[:4] == "/v1/" && method == "GET" {
				return err
			}
		}
	}
	machine, err := s.machine.call(ctx, "POST", "/v1/approvals/"+d.Approval.ID+"/decisions", map[string]any{"decision": "approve", "digest": d.Approval.Digest}, nil)
	if err != nil {
		return err
	}
	stale, err := s.ana.call(ctx, "POST", "/v1/approvals/"+d.Approval.ID+"/decisions", map[string]any{"decision": "approve", "digest": "0" + d.Approval.Digest[1:]}, nil)
	if err != nil {
		return err
	}
	after, err := s.run(ctx, c.Run.ID)
	if err != nil {
		return err
	}
	r.check("I8", after.Version == before.Version && after.State == holdpoint.RunAwaitingHuman, "nine GET and HEAD requests of a scanner changed nothing")
	r.check("I4", machine == http.StatusForbidden && stale == http.StatusConflict, "a machine may not decide, and a decision about another digest gets 409")
	return s.decide(ctx, d.Approval, holdpoint.DecisionSendBack, "shorter, please")
}

func (s *stage) rejection(ctx context.Context, r *Report) error {
	c, d, err := s.work(ctx, "ticket-reply", "ticket-5", `{"reply":"You owe us money.","label":"refund"}`)
	if err != nil {
		return err
	}
	if err := s.decide(ctx, d.Approval, holdpoint.DecisionReject, "wrong customer"); err != nil {
		return err
	}
	v, err := s.until(ctx, c.Run.ID, "the rejection", state(holdpoint.RunFailedTerminal))
	if err != nil {
		return err
	}
	r.check("I1", v.Reason == holdpoint.ReasonRejected && v.Answers.Sent == "no", "a rejected draft is never sent")
	return nil
}

func (s *stage) switchedOff(ctx context.Context, r *Report) error {
	if err := s.switches(ctx, false, "drill"); err != nil {
		return err
	}
	before := len(s.provider.Writes())
	c, d, err := s.work(ctx, "ticket-reply", "ticket-6", `{"reply":"After the switch.","label":"refund"}`)
	if err != nil {
		return err
	}
	if err := s.decide(ctx, d.Approval, holdpoint.DecisionApprove, ""); err != nil {
		return err
	}
	v, err := s.until(ctx, c.Run.ID, "the held reply", func(v runView) bool { return len(v.Effects) == 1 && v.Effects[0].Hold == holdpoint.HoldSwitch })
	if err != nil {
		return err
	}
	time.Sleep(1500 * time.Millisecond) // more than a poll: what would leave, would have left
	during := len(s.provider.Writes()) - before
	if err := s.switches(ctx, true, "drill over"); err != nil {
		return err
	}
	if v, err = s.until(ctx, c.Run.ID, "the reply after the switch", state(holdpoint.RunCompleted)); err != nil {
		return err
	}
	sent := s.provider.CountReference(v.Effects[0].Reference)
	r.check("I2", during == 0 && sent == 1, "approved with the switch off: %d sent while off, %d after", during, sent)
	return nil
}

func (s *stage) permission(ctx context.Context, r *Report) error {
	s.provider.Queue("/crm", mirror.Status(http.StatusForbidden, `{"error":"missing scope"}`, nil))
	c, d, err := s.work(ctx, "crm-note", "note-1", `{"reply":"Jane called.","label":"note"}`)
	if err != nil {
		return err
	}
	if err := s.decide(ctx, d.Approval, holdpoint.DecisionApprove, ""); err != nil {
		return err
	}
	v, err := s.until(ctx, c.Run.ID, "the hold", func(v runView) bool { return len(v.Effects) == 1 && v.Effects[0].Hold == holdpoint.HoldPermission })
	if err != nil {
		return err
	}
	r.check("I9", v.Effects[0].State == holdpoint.EffectPending, "a missing permission holds the effect for a person; it is not repeated")
	return s.otto.expect(ctx, 200, "POST", "/v1/connectors/crm/release", nil, nil)
}

func (s *stage) stall(ctx context.Context, r *Report) error {
	s.provider.Queue("/orders", mirror.AcceptThenStall(3*time.Second))
	c, d, err := s.work(ctx, "order", "order-11", `{"reply":"Order 11 is booked.","label":"order"}`)
	if err != nil {
		return err
	}
	if err := s.decide(ctx, d.Approval, holdpoint.DecisionApprove, ""); err != nil {
		return err
	}
	v, err := s.until(ctx, c.Run.ID, "the order", state(holdpoint.RunCompleted))
	if err != nil {
		return err
	}
	sent := s.provider.CountReference(v.Effects[0].Reference)
	r.check("I3", sent == 1 && v.Effects[0].Lookups > 0 && v.Effects[0].ProviderID != "", "a provider that accepted and stalled: found by look-up, %d request on the wire", sent)
	return nil
}
