//go:build e2e && kill

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

// load is what clients do all the time to the servers of a siege. A call that gets no answer is repeated, identical, to
// whatever server answers; what is answered goes into the journal.
type load struct {
	j       *journal
	pick    func(r *rand.Rand) *server // a server that may answer; nil while there is none
	cycle   *atomic.Int64
	seed    uint64
	resting atomic.Bool // no new event begins
	calls   atomic.Int64
	retold  atomic.Int64 // answers to a call that had been sent before
	events  atomic.Int64
}

// answer makes a call until a server answers it. It gives up with the context's error only.
func answer[A any](ctx context.Context, l *load, r *rand.Rand, make func(*server) (A, error)) (A, error) {
	for tries := 0; ; tries++ {
		if s := l.pick(r); s != nil {
			l.calls.Add(1)
			a, err := make(s)
			if !errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeUnavailable}) && !errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeRateLimited}) {
				if tries > 0 {
					l.retold.Add(1)
				}
				return a, err
			}
		}
		select {
		case <-ctx.Done():
			var none A
			return none, ctx.Err()
		case <-time.After(time.Duration(20+r.IntN(60)) * time.Millisecond):
		}
	}
}

// pause lets a moment pass between two events; it reports false when there is to be no further one.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// work takes events until the context ends. One worker's choices depend on the seed and its number alone.
func (l *load) work(ctx context.Context, number int) {
	r := rand.New(rand.NewPCG(l.seed, uint64(number)))
	for n := 0; pause(ctx, time.Duration(100+r.IntN(400))*time.Millisecond); n++ {
		for l.resting.Load() && pause(ctx, 20*time.Millisecond) {
		}
		l.event(ctx, r, fmt.Sprintf("event-%d-%d-%d", l.seed, number, n))
		l.events.Add(1)
	}
}

// id makes an owner from the seed.
func id(r *rand.Rand) string {
	var b [16]byte
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	u, _ := uuid.FromBytes(b[:])
	return u.String()
}

// event carries one business event from its deliveries to its decision.
func (l *load) event(ctx context.Context, r *rand.Rand, key string) {
	s := l.j.begin(key)
	s.at(int(l.cycle.Load()))
	flow := string(classes[r.IntN(len(classes))])
	w, run, ok := l.deliver(ctx, r, s, flow)
	if !ok {
		return
	}
	chance := r.IntN(100)
	if chance < 30 && !l.step(ctx, r, s, run, w) {
		return
	}
	if chance < 10 { // the model fails; another round, by another owner, if it comes soon
		if _, err := answer(ctx, l, r, func(x *server) (holdpoint.Run, error) {
			return x.machine.Fail(ctx, run, client.FailRequest{Work: w, Failure: client.Failure{Class: holdpoint.ClassModelTimeout, Message: "no answer"}})
		}); err != nil || !pause(ctx, 2*time.Second) {
			return
		}
		if w, run, ok = l.deliver(ctx, r, s, flow); !ok {
			return
		}
	}
	a, ok := l.draft(ctx, r, s, run, w, chance%5 == 0)
	if !ok {
		return
	}
	s.at(int(l.cycle.Load()))
	if l.decide(ctx, r, s, a) != holdpoint.ApprovalSentBack {
		return
	}
	if w, run, ok = l.deliver(ctx, r, s, flow); !ok {
		return
	}
	if a, ok = l.draft(ctx, r, s, run, w, false); ok {
		l.word(ctx, r, s, a, true, holdpoint.DecisionApprove)
	}
	s.at(int(l.cycle.Load()))
}

// deliver claims an event, sometimes several times at once, and gives the lease if one delivery got it.
func (l *load) deliver(ctx context.Context, r *rand.Rand, s *story, flow string) (client.Work, string, bool) {
	deliveries := 1
	if r.IntN(3) == 0 {
		deliveries += 1 + r.IntN(3)
	}
	type got struct {
		owner string
		claim client.Claim
		err   error
	}
	all := make([]got, deliveries)
	lease := holdpoint.Duration(30 * time.Second)
	var wait sync.WaitGroup
	for i := range all {
		own := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		all[i].owner = id(own)
		asked := client.ClaimRequest{Workflow: flow, Key: s.key, Payload: event(s.key), Owner: all[i].owner, Lease: &lease}
		wait.Go(func() {
			all[i].claim, all[i].err = answer(ctx, l, own, func(x *server) (client.Claim, error) {
				if i%2 == 0 {
					return x.machine.Claim(ctx, asked)
				}
				b, err := x.machine.ClaimBatch(ctx, []client.ClaimRequest{asked})
				if err != nil || len(b) != 1 {
					return client.Claim{}, err
				}
				return b[0].Claim, b[0].Err
			})
		})
	}
	wait.Wait()
	var w client.Work
	run := ""
	for _, g := range all {
		if g.err != nil {
			if ctx.Err() == nil {
				l.j.breach("%s: a claim was refused: %v", s.key, g.err)
			}
			continue
		}
		s.claimed(l.j, g.owner, g.claim)
		if g.claim.Outcome == holdpoint.Claimed && g.claim.Lease.Version > w.Version {
			w, run = client.Work{Owner: g.owner, Version: g.claim.Lease.Version}, g.claim.Run.ID
		}
	}
	return w, run, run != ""
}

// step runs one step of the work, so that its result outlives what may come.
func (l *load) step(ctx context.Context, r *rand.Rand, s *story, run string, w client.Work) bool {
	if _, err := answer(ctx, l, r, func(x *server) (client.StepAnswer, error) {
		return x.machine.BeginStep(ctx, run, "look", client.StepRequest{Work: w})
	}); err != nil {
		return false
	}
	if _, err := answer(ctx, l, r, func(x *server) (holdpoint.Lease, error) { return x.machine.Renew(ctx, run, w, 40*time.Second) }); err != nil {
		return false
	}
	step, err := answer(ctx, l, r, func(x *server) (holdpoint.Step, error) {
		return x.machine.FinishStep(ctx, run, "look", client.StepEnd{Work: w, Result: json.RawMessage(`{"found": 1}`)})
	})
	if err == nil && step.State == holdpoint.StepCompleted {
		s.step("look")
	}
	return err == nil
}

// draft hands the model's output in, after an output that is none if clumsy.
func (l *load) draft(ctx context.Context, r *rand.Rand, s *story, run string, w client.Work, clumsy bool) (client.Approval, bool) {
	output := json.RawMessage(fmt.Sprintf(`{"reply": "The reply to %s."}`, s.key))
	if clumsy {
		if _, err := answer(ctx, l, r, func(x *server) (client.Draft, error) {
			return x.machine.SubmitDraft(ctx, run, client.DraftRequest{Work: w, Output: json.RawMessage(`"Sure!"`), Model: model})
		}); err != nil {
			return client.Approval{}, false
		}
	}
	d, err := answer(ctx, l, r, func(x *server) (client.Draft, error) {
		return x.machine.SubmitDraft(ctx, run, client.DraftRequest{Work: w, Output: output, Model: model})
	})
	if err != nil || d.Approval == nil {
		return client.Approval{}, false
	}
	s.held(d.Approval.ID)
	s.told(d.Run)
	return *d.Approval, true
}

// decide has one person decide, or two at once of different minds, or an operator take the question back.
func (l *load) decide(ctx context.Context, r *rand.Rand, s *story, a client.Approval) holdpoint.ApprovalState {
	switch chance := r.IntN(100); {
	case chance < 6:
		return l.word(ctx, r, s, a, false, holdpoint.DecisionReject)
	case chance < 12:
		return l.word(ctx, r, s, a, true, holdpoint.DecisionSendBack)
	case chance < 16:
		s.moving(a.ID, holdpoint.ApprovalWithdrawn)
		if x, err := answer(ctx, l, r, func(x *server) (client.Withdrawal, error) { return x.otto.Withdraw(ctx, a.ID, "a mistake") }); err == nil {
			s.moved(l.j, a.ID, x.Approval.State)
		}
		return holdpoint.ApprovalWithdrawn
	case chance < 26:
		var both sync.WaitGroup
		one, two := rand.New(rand.NewPCG(r.Uint64(), 1)), rand.New(rand.NewPCG(r.Uint64(), 2))
		both.Go(func() { l.word(ctx, one, s, a, true, holdpoint.DecisionApprove) })
		both.Go(func() { l.word(ctx, two, s, a, false, holdpoint.DecisionReject) })
		both.Wait()
		return holdpoint.ApprovalApproved
	}
	return l.word(ctx, r, s, a, r.IntN(2) == 0, holdpoint.DecisionApprove)
}

// word has Ana or Ben decide.
func (l *load) word(ctx context.Context, r *rand.Rand, s *story, a client.Approval, asAna bool, d holdpoint.Decision) holdpoint.ApprovalState {
	to := map[holdpoint.Decision]holdpoint.ApprovalState{holdpoint.DecisionApprove: holdpoint.ApprovalApproved,
		holdpoint.DecisionReject: holdpoint.ApprovalRejected, holdpoint.DecisionSendBack: holdpoint.ApprovalSentBack}[d]
	s.moving(a.ID, to)
	x, err := answer(ctx, l, r, func(x *server) (client.Decided, error) {
		who := x.ben
		if asAna {
			who = x.ana
		}
		return who.Decide(ctx, a.ID, client.DecisionRequest{Decision: d, Digest: a.Digest, Reason: "because"})
	})
	var refused *holdpoint.Error
	switch {
	case err == nil:
		s.moved(l.j, a.ID, x.Approval.State)
		s.told(x.Run)
		if x.Approval.State != to {
			l.j.breach("%s: %s was answered with %s", s.key, d, x.Approval.State)
		}
		return to
	case errors.As(err, &refused) && refused.Code != holdpoint.CodeAlreadyDecided && ctx.Err() == nil:
		l.j.breach("%s: a decision was refused: %v", s.key, err)
	}
	return holdpoint.ApprovalPending
}
