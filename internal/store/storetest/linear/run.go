package linear

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// runState is all that the model of a run remembers.
type runState struct {
	State    holdpoint.RunState
	Version  int64
	Owner    string
	Long     bool
	Call     string // the last call that moved the run
	Revision int
	Approval holdpoint.ApprovalState // of the latest revision
	Decided  string                  // every decision that counted: "revision person decision;"
}

func (r runState) as(code string) answer {
	return answer{Code: code, State: string(r.State), Version: r.Version}
}

// moved is the run after a transition.
func (r runState) moved(to holdpoint.RunState) runState {
	r.State, r.Version = to, r.Version+1
	return r
}

// takeRun gives the ways in which a run may take a call.
func takeRun(r runState, o op) []possible[runState] {
	stays := func(code string) possible[runState] { return possible[runState]{r, answer{Code: code}} }
	moves := func(next runState) possible[runState] { return possible[runState]{next, next.as("ok")} }
	if o.Verb == "claim" {
		return takeClaim(r, o)
	}
	if r.Version == 0 {
		return []possible[runState]{stays("not_found")}
	}
	repeated := o.ID != "" && r.Call == o.ID && r.Owner == o.Owner && r.Version > o.Version
	fenced := func(next possible[runState]) []possible[runState] {
		switch {
		case r.State != holdpoint.RunProcessing || r.Owner != o.Owner || r.Version != o.Version:
			return []possible[runState]{stays("lease_lost")}
		case r.Long:
			return []possible[runState]{next}
		}
		return []possible[runState]{next, stays("lease_lost")}
	}
	switch o.Verb {
	case "read":
		return []possible[runState]{moves(r)}
	case "renew":
		next := r
		next.Long = true
		return fenced(moves(next))
	case "end":
		if repeated {
			return []possible[runState]{moves(r)}
		}
		next := r.moved(holdpoint.RunState(o.Arg))
		next.Call = o.ID
		return fenced(moves(next))
	case "hold":
		if repeated {
			return []possible[runState]{moves(r)}
		}
		if o.Revision != r.Revision+1 {
			return fenced(stays("not_allowed_now"))
		}
		next := r.moved(holdpoint.RunAwaitingHuman)
		next.Call, next.Revision, next.Approval = o.ID, o.Revision, holdpoint.ApprovalPending
		return fenced(moves(next))
	case "cancel":
		switch r.State {
		case holdpoint.RunAwaitingHuman, holdpoint.RunFailedRetryable, holdpoint.RunApproved:
			next := r.moved(holdpoint.RunFailedTerminal)
			if r.State == holdpoint.RunAwaitingHuman {
				next.Approval = holdpoint.ApprovalWithdrawn
			}
			return []possible[runState]{moves(next)}
		}
		return []possible[runState]{stays("not_allowed_now")}
	}
	return []possible[runState]{takeDecision(r, o, stays, moves)}
}

func takeClaim(r runState, o op) []possible[runState] {
	won := func() possible[runState] {
		next := r.moved(holdpoint.RunProcessing)
		next.Owner, next.Long, next.Call = o.Owner, o.Long, ""
		return possible[runState]{next, next.as("claimed")}
	}
	stays := func(code string) possible[runState] { return possible[runState]{r, r.as(code)} }
	switch {
	case r.Version == 0:
		if o.Arg == "mismatch" { // the first payload is the right one, whatever it is; clients bring the other one later
			return nil
		}
		return []possible[runState]{won()}
	case o.Arg == "mismatch":
		return []possible[runState]{stays("mismatch")}
	case r.State == holdpoint.RunProcessing && o.Arg == "explicit" && r.Owner == o.Owner:
		if r.Long {
			return []possible[runState]{stays("claimed")}
		}
		return []possible[runState]{stays("claimed"), won()}
	case r.State == holdpoint.RunProcessing && r.Long:
		return []possible[runState]{stays("busy")}
	case r.State == holdpoint.RunProcessing, r.State == holdpoint.RunFailedRetryable:
		// A lease of a microsecond and a retry time of now are over by the next instant; a claim may have read its clock before.
		return []possible[runState]{won(), stays("busy")}
	}
	return []possible[runState]{stays("duplicate")}
}

func takeDecision(r runState, o op, stays func(string) possible[runState], moves func(runState) possible[runState]) possible[runState] {
	word := fmt.Sprintf("%d %s %s;", o.Revision, o.ID, o.Arg)
	switch {
	case o.Revision > r.Revision || o.Revision == 0:
		return stays("not_found")
	case o.Verb == "decide" && strings.Contains(r.Decided, word):
		return moves(r)
	case o.Verb == "withdraw" && o.Revision == r.Revision && r.Approval == holdpoint.ApprovalWithdrawn:
		return moves(r)
	case o.Verb == "withdraw" && o.Revision == r.Revision && r.Approval == holdpoint.ApprovalApproved && r.State == holdpoint.RunApproved,
		o.Verb == "withdraw" && o.Revision == r.Revision && r.Approval == holdpoint.ApprovalPending:
		next := r.moved(holdpoint.RunFailedTerminal)
		next.Approval = holdpoint.ApprovalWithdrawn
		return moves(next)
	case o.Verb == "withdraw":
		return stays("not_allowed_now")
	case o.Revision < r.Revision || r.Approval != holdpoint.ApprovalPending:
		return stays("already_decided")
	}
	next := r.moved(map[string]holdpoint.RunState{"approve": holdpoint.RunApproved, "reject": holdpoint.RunFailedTerminal, "send_back": holdpoint.RunFailedRetryable}[o.Arg])
	next.Approval = map[string]holdpoint.ApprovalState{"approve": holdpoint.ApprovalApproved, "reject": holdpoint.ApprovalRejected,
		"send_back": holdpoint.ApprovalSentBack}[o.Arg]
	next.Decided += word
	return moves(next)
}

// handler is a client of runs: it claims, works, hands over, decides, and repeats calls whose answer it does not know.
type handler struct {
	client
	store.Store
	run    map[string]string      // run of a key
	fences map[string]store.Fence // the last lease won of a key
	last   map[string]func(context.Context) error
}

// work makes n calls that move along the keys, so that clients meet.
func (w *handler) work(ctx context.Context, keys []string, n int) error {
	w.run, w.fences, w.last = map[string]string{}, map[string]store.Fence{}, map[string]func(context.Context) error{}
	for i := range n {
		key := keys[min(i*len(keys)/n+w.rand.IntN(2), len(keys)-1)]
		if err := w.step(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

func (w *handler) step(ctx context.Context, key string) error {
	run, known := w.run[key]
	fence, fenced := w.fences[key]
	dice := w.rand.IntN(20)
	switch {
	case !known || dice < 6:
		return w.claim(ctx, key, known)
	case w.last[key] != nil && dice < 8:
		return w.last[key](ctx)
	case fenced && dice < 10:
		_, _, err := w.call(ctx, op{Object: key, Verb: "renew", Owner: fence.Owner, Version: fence.Version}, func(ctx context.Context) (answer, error) {
			_, err := w.RenewLease(ctx, fence, time.Hour)
			return answer{State: string(holdpoint.RunProcessing), Version: fence.Version}, err
		})
		return err
	case fenced && dice < 12:
		return w.end(ctx, key, fence)
	case fenced && dice < 15:
		return w.hold(ctx, key, fence)
	case dice < 18:
		return w.decide(ctx, key, run)
	}
	verb, call := "read", func(ctx context.Context) (holdpoint.Run, error) {
		r, err := w.Content(ctx, runsTenant, run)
		return r.Run, err
	}
	if w.rand.IntN(8) == 0 {
		verb, call = "cancel", func(ctx context.Context) (holdpoint.Run, error) {
			return w.CancelRun(ctx, runsTenant, run, nil, machine)
		}
	}
	_, _, err := w.call(ctx, op{Object: key, Verb: verb}, func(ctx context.Context) (answer, error) { return told(call(ctx)) })
	return err
}

// told is a run as an answer.
func told(r holdpoint.Run, err error) (answer, error) {
	return answer{State: string(r.State), Version: r.Version}, err
}

func (w *handler) claim(ctx context.Context, key string, known bool) error {
	c := newClaim(runsTenant, key)
	o := op{Object: key, Verb: "claim", Long: w.rand.IntN(3) > 0}
	if !o.Long {
		c.Lease = time.Microsecond
	}
	switch w.rand.IntN(5) {
	case 0:
		if known {
			c.Fingerprint, o.Arg = "another", "mismatch"
		}
	case 1:
		c.Owner, c.OwnerExplicit, o.Arg = fmt.Sprint("client-", w.number), true, "explicit"
	}
	o.Owner = c.Owner
	_, _, err := w.call(ctx, o, func(ctx context.Context) (answer, error) {
		all, err := w.ClaimRuns(ctx, []store.Claim{c})
		if err != nil {
			return answer{}, err
		}
		a, _ := told(all[0].Run, nil)
		a.Code = string(all[0].Outcome)
		w.run[key] = all[0].Run.ID
		if all[0].Outcome == holdpoint.Claimed {
			w.fences[key] = store.Fence{Tenant: runsTenant, RunID: all[0].Run.ID, Owner: c.Owner, Version: all[0].Lease.Version, ExecutionID: c.ExecutionID}
		}
		return a, nil
	})
	return err
}

func (w *handler) end(ctx context.Context, key string, fence store.Fence) error {
	fence.Call = newID()
	to := holdpoint.RunFailedRetryable
	if w.rand.IntN(6) == 0 {
		to = holdpoint.RunCompleted
	}
	w.last[key] = func(ctx context.Context) error {
		_, _, err := w.call(ctx, op{Object: key, Verb: "end", Owner: fence.Owner, Version: fence.Version, ID: fence.Call, Arg: string(to)}, func(ctx context.Context) (answer, error) {
			return told(w.EndWork(ctx, fence, store.WorkEnd{State: to, Who: machine}))
		})
		return err
	}
	return w.last[key](ctx)
}

func (w *handler) hold(ctx context.Context, key string, fence store.Fence) error {
	fence.Call = newID()
	rec, err := w.Content(ctx, runsTenant, fence.RunID)
	if err != nil {
		return err
	}
	d := newDraft(fence, rec.Run.Revision+1)
	w.last[key] = func(ctx context.Context) error {
		_, _, err := w.call(ctx, op{Object: key, Verb: "hold", Owner: fence.Owner, Version: fence.Version, ID: fence.Call, Revision: d.Draft.Revision}, func(ctx context.Context) (answer, error) {
			r, _, err := w.HoldDraft(ctx, d)
			return told(r, err)
		})
		return err
	}
	return w.last[key](ctx)
}

func (w *handler) decide(ctx context.Context, key, run string) error {
	rec, err := w.Content(ctx, runsTenant, run)
	if err != nil {
		return err
	}
	revision := max(1, rec.Run.Revision-w.rand.IntN(2))
	approval := approvalOf(run, revision)
	if w.rand.IntN(10) == 0 {
		_, _, err := w.call(ctx, op{Object: key, Verb: "withdraw", Revision: revision}, func(ctx context.Context) (answer, error) {
			r, err := w.WithdrawApproval(ctx, runsTenant, approval, nil, machine)
			return told(r.Run, err)
		})
		return err
	}
	said := []holdpoint.Decision{holdpoint.DecisionSendBack, holdpoint.DecisionSendBack, holdpoint.DecisionApprove, holdpoint.DecisionReject}[w.rand.IntN(4)]
	d := newDecision(runsTenant, run, revision, fmt.Sprint("person-", w.number), said)
	_, _, err = w.call(ctx, op{Object: key, Verb: "decide", ID: d.Person.ID, Arg: string(said), Revision: revision}, func(ctx context.Context) (answer, error) {
		r, err := w.Decide(ctx, d)
		return told(r.Run, err)
	})
	return err
}
