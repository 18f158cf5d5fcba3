package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// jane is asked by every fixture draft; joe is not, but may decide all the same.
var (
	jane = holdpoint.Person{ID: "person-jane", Tenant: "acme", Email: "jane@acme.example"}
	joe  = holdpoint.Person{ID: "person-joe", Tenant: "acme", Email: "joe@acme.example"}
)

// answer is a person's decision about an approval as it is now.
func (f *fixture) answer(a holdpoint.Approval, p holdpoint.Person, d holdpoint.Decision) store.Decision {
	return store.Decision{Tenant: f.tenant, ID: uuid.NewString(), ApprovalID: a.ID, Digest: a.Digest, Person: p, Decision: d, ReasonText: []byte("reason"),
		Assurance: "login", How: "session", Budget: 2 * time.Hour, Who: holdpoint.Who{Kind: "person", ID: p.Email, How: "session"}}
}

// decide takes a decision that must count.
func (f *fixture) decide(a holdpoint.Approval, p holdpoint.Person, d holdpoint.Decision) store.DecisionResult {
	f.t.Helper()
	r, err := f.Decide(f.ctx, f.answer(a, p, d))
	require.NoError(f.t, err)
	require.False(f.t, r.Repeated)
	return r
}

// released claims, drafts and approves a run with one effect for each slot.
func (f *fixture) released(key string, slots ...string) store.DecisionResult {
	f.t.Helper()
	_, a := f.held(f.work(key), slots...)
	return f.decide(a, jane, holdpoint.DecisionApprove)
}

// testGates is every answer to a decision and a withdrawal, and the races between them.
func testGates(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	t.Run("approve", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		draft := f.newDraft(fence, 1, "mail", "note")
		draft.Effects[1].After = []string{"mail"}
		draft.Effects[1].Payload = []byte("other bytes")
		run, a, err := f.HoldDraft(f.ctx, draft)
		require.NoError(t, err)
		f.advance(time.Minute)
		d := f.answer(a, jane, holdpoint.DecisionApprove)
		d.Messages = []store.Message{f.newMessage(run.ID)}
		r, err := f.Decide(f.ctx, d)
		require.NoError(t, err)

		by := f.now().Add(time.Hour)
		require.Equal(t, holdpoint.ApprovalApproved, r.Approval.State)
		require.Equal(t, by, *r.Approval.ExecuteBy)
		require.Equal(t, f.now(), *r.Approval.DecidedAt)
		require.EqualValues(t, 2, r.Approval.Version)
		require.Equal(t, holdpoint.RunApproved, r.Run.State)
		require.Equal(t, run.Version+1, r.Run.Version)
		require.Equal(t, draft.Challenges[0].ID, r.Decision.ChallengeID)
		require.Len(t, r.Effects, 2)
		for i, e := range r.Effects {
			want := draft.Effects[i].EffectSpec
			if want.After == nil {
				want.After = []string{}
			}
			require.Equal(t, want, e.EffectSpec)
			require.Equal(t, holdpoint.EffectPending, e.State)
			require.Equal(t, a.ID, e.ApprovalID)
			require.Equal(t, by, *e.ExecuteBy)
			require.Equal(t, f.now(), *e.NextAttemptAt)
		}
		rec := f.record(run.ID)
		require.Equal(t, []byte("other bytes"), rec.Effects[1].Payload)
		require.Equal(t, []byte("target"), rec.Effects[1].Target)
		require.Equal(t, []byte("reason"), rec.Decisions[0].ReasonText)
		require.Equal(t, f.now(), *rec.Challenges[0].UsedAt)
		require.Len(t, rec.Messages, 2)
		require.Equal(t, []string{"decision.recorded", "approval.approved", "run.approved", "effect.queued", "effect.queued"}, tail(f.kinds(run.ID), 5))

		t.Run("again by the same person is what stands", func(t *testing.T) {
			f.advance(time.Minute)
			again := f.answer(a, jane, holdpoint.DecisionApprove)
			second, err := f.Decide(f.ctx, again)
			require.NoError(t, err)
			require.True(t, second.Repeated)
			require.Equal(t, r.Decision, second.Decision)
			require.Equal(t, r.Effects, second.Effects)
			require.Equal(t, r.Run, second.Run)
			require.Equal(t, rec.Effects, f.record(run.ID).Effects)
			require.Len(t, f.record(run.ID).Decisions, 1)
		})
		t.Run("a contradicting decision meets the standing one", func(t *testing.T) {
			for _, d := range []store.Decision{f.answer(a, jane, holdpoint.DecisionReject), f.answer(a, joe, holdpoint.DecisionApprove)} {
				_, err := f.Decide(f.ctx, d)
				e := requireCode(t, holdpoint.CodeAlreadyDecided, err)
				require.Equal(t, map[string]any{"state": holdpoint.ApprovalApproved, "decision": holdpoint.DecisionApprove, "email": jane.Email,
					"created_at": r.Decision.CreatedAt}, e.Detail["standing"])
			}
		})
	})

	t.Run("approve with nothing to send completes", func(t *testing.T) {
		f := newFixture(t, open)
		r := f.released("k")
		require.Equal(t, holdpoint.RunCompleted, r.Run.State)
		require.Equal(t, f.now(), *r.Run.EndedAt)
		require.Empty(t, r.Effects)
		require.Equal(t, []string{"run.approved", "run.completed"}, tail(f.kinds(r.Run.ID), 2))
	})

	t.Run("reject ends the run", func(t *testing.T) {
		f := newFixture(t, open)
		_, a := f.held(f.work("k"), "mail")
		r := f.decide(a, jane, holdpoint.DecisionReject)
		require.Equal(t, holdpoint.ApprovalRejected, r.Approval.State)
		require.Nil(t, r.Approval.ExecuteBy)
		require.Equal(t, holdpoint.RunFailedTerminal, r.Run.State)
		require.Equal(t, holdpoint.ReasonRejected, r.Run.Reason)
		require.NotNil(t, r.Run.EndedAt)
		require.Empty(t, f.record(a.RunID).Effects)
	})

	t.Run("send back is due at once, in a new round with its own budget", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		_, err := f.RejectDraft(f.ctx, fence, store.DraftRejection{Class: holdpoint.ClassSchema, Codes: []string{"required"}, Who: machine})
		require.NoError(t, err)
		_, a := f.held(fence, "mail")
		f.advance(23 * time.Hour) // budgets stand still while a person holds the run
		r := f.decide(a, jane, holdpoint.DecisionSendBack)
		require.Equal(t, holdpoint.ApprovalSentBack, r.Approval.State)
		require.Equal(t, holdpoint.RunFailedRetryable, r.Run.State)
		require.Equal(t, holdpoint.ReasonSentBack, r.Run.Reason)
		require.Equal(t, []int{0, 2, 0}, []int{r.Run.Attempts, r.Run.Round, r.Run.Repairs})
		require.Equal(t, f.now(), *r.Run.RetryAt)
		require.Equal(t, f.now().Add(2*time.Hour), *r.Run.BudgetUntil)
		require.Empty(t, f.record(a.RunID).Effects)

		next := newClaim(f.tenant, "k")
		claimed := f.try(next)
		require.Equal(t, holdpoint.Claimed, claimed.Outcome)
		require.Equal(t, "failed_retryable", claimed.RecoveredFrom)
		fence = store.Fence{Tenant: f.tenant, RunID: a.RunID, Owner: next.Owner, Version: claimed.Lease.Version, ExecutionID: next.ExecutionID}
		_, second, err := f.HoldDraft(f.ctx, f.newDraft(fence, 2, "mail"))
		require.NoError(t, err)
		released := f.decide(second, jane, holdpoint.DecisionApprove)
		require.Len(t, released.Effects, 1, "only the revision that was approved is released")
		require.Equal(t, 2, released.Effects[0].Revision)
	})

	t.Run("refusals change nothing", func(t *testing.T) {
		f := newFixture(t, open)
		_, a := f.held(f.work("k"), "mail")
		review := f.newDraft(f.work("review"), 1)
		review.Approval.Allowed = []holdpoint.Decision{holdpoint.DecisionReject, holdpoint.DecisionSendBack}
		_, narrow, err := f.HoldDraft(f.ctx, review)
		require.NoError(t, err)
		pair := f.newDraft(f.work("pair"), 1, "mail")
		pair.Approval.Quorum = 2
		_, two, err := f.HoldDraft(f.ctx, pair)
		require.NoError(t, err)
		stale := f.answer(a, jane, holdpoint.DecisionApprove)
		stale.Digest = "digest-of-another-revision"
		elsewhere := f.answer(a, jane, holdpoint.DecisionApprove)
		elsewhere.Tenant = "other"
		for name, c := range map[string]struct {
			d    store.Decision
			code holdpoint.Code
		}{
			"another digest":       {stale, holdpoint.CodeStaleDigest},
			"another tenant":       {elsewhere, holdpoint.CodeNotFound},
			"not offered":          {f.answer(narrow, jane, holdpoint.DecisionApprove), holdpoint.CodeNotAllowedNow},
			"no such decision":     {f.answer(a, jane, "postpone"), holdpoint.CodeNotAllowedNow},
			"more than one needed": {f.answer(two, jane, holdpoint.DecisionApprove), holdpoint.CodeNotAllowedNow},
		} {
			run := c.d.ApprovalID
			before := f.record(map[string]string{a.ID: a.RunID, narrow.ID: narrow.RunID, two.ID: two.RunID}[run])
			_, err := f.Decide(f.ctx, c.d)
			requireCode(t, c.code, err)
			require.Equal(t, before, f.record(before.Run.ID), name)
		}
		f.advance(24 * time.Hour)
		before := f.record(a.RunID)
		_, err = f.Decide(f.ctx, f.answer(a, jane, holdpoint.DecisionApprove))
		e := requireCode(t, holdpoint.CodeNotAllowedNow, err)
		require.Equal(t, map[string]any{"state": holdpoint.ApprovalPending}, e.Detail["standing"])
		require.Equal(t, before, f.record(a.RunID))
		_, err = f.SweepRuns(f.ctx, 10)
		require.NoError(t, err)
		_, err = f.Decide(f.ctx, f.answer(a, jane, holdpoint.DecisionApprove))
		e = requireCode(t, holdpoint.CodeAlreadyDecided, err)
		require.Equal(t, map[string]any{"state": holdpoint.ApprovalExpired}, e.Detail["standing"])
	})

	t.Run("fifty contradicting decisions at once", func(t *testing.T) {
		f := newFixture(t, open)
		_, a := f.held(f.work("k"), "mail", "note")
		kinds := []holdpoint.Decision{holdpoint.DecisionApprove, holdpoint.DecisionReject, holdpoint.DecisionSendBack}
		results := parallel(50, func(i int) (store.DecisionResult, error) {
			p := holdpoint.Person{ID: fmt.Sprint("person-", i), Tenant: f.tenant, Email: fmt.Sprintf("p%d@acme.example", i)}
			return f.Decide(f.ctx, f.answer(a, p, kinds[i%3]))
		})
		var won []store.DecisionResult
		for _, r := range results {
			if r.err == nil {
				won = append(won, r.value)
				continue
			}
			e := requireCode(t, holdpoint.CodeAlreadyDecided, r.err)
			require.NotEmpty(t, e.Detail["standing"].(map[string]any)["email"])
		}
		require.Len(t, won, 1)
		rec := f.record(a.RunID)
		require.Len(t, rec.Decisions, 1)
		require.Equal(t, won[0].Decision, rec.Decisions[0].DecisionRecord)
		if won[0].Decision.Decision == holdpoint.DecisionApprove {
			require.Len(t, rec.Effects, 2)
		} else {
			require.Empty(t, rec.Effects)
		}
		require.Equal(t, 1, count(f.kinds(a.RunID), "decision.recorded"))
	})

	t.Run("the same decision fifty times at once counts once", func(t *testing.T) {
		f := newFixture(t, open)
		_, a := f.held(f.work("k"), "mail")
		fresh := 0
		for _, r := range parallel(50, func(int) (store.DecisionResult, error) {
			return f.Decide(f.ctx, f.answer(a, jane, holdpoint.DecisionApprove))
		}) {
			require.NoError(t, r.err)
			require.Len(t, r.value.Effects, 1)
			if !r.value.Repeated {
				fresh++
			}
		}
		require.Equal(t, 1, fresh)
		require.Len(t, f.record(a.RunID).Effects, 1)
	})

	t.Run("decision against withdrawal", func(t *testing.T) {
		f := newFixture(t, open)
		for i := range 10 {
			_, a := f.held(f.work(fmt.Sprint("k", i)), "mail")
			results := parallel(2, func(i int) (store.DecisionResult, error) {
				if i == 0 {
					return f.Decide(f.ctx, f.answer(a, jane, holdpoint.DecisionApprove))
				}
				return f.WithdrawApproval(f.ctx, f.tenant, a.ID, []byte("why"), machine)
			})
			require.NoError(t, results[1].err, "withdrawn before the decision, or right after it")
			require.Equal(t, holdpoint.ApprovalWithdrawn, results[1].value.Approval.State)
			rec := f.record(a.RunID)
			require.Equal(t, holdpoint.ApprovalWithdrawn, rec.Approvals[0].State)
			require.Equal(t, holdpoint.RunFailedTerminal, rec.Run.State)
			require.Equal(t, holdpoint.ReasonWithdrawn, rec.Run.Reason)
			if results[0].err != nil {
				requireCode(t, holdpoint.CodeAlreadyDecided, results[0].err)
				require.Empty(t, rec.Effects)
			} else {
				require.Equal(t, holdpoint.EffectFailed, rec.Effects[0].State)
			}
		}
	})
	testWithdrawals(t, open)
	testChallenges(t, open)
}

func testWithdrawals(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	t.Run("withdraw a pending approval", func(t *testing.T) {
		f := newFixture(t, open)
		_, a := f.held(f.work("k"), "mail")
		r, err := f.WithdrawApproval(f.ctx, f.tenant, a.ID, []byte("why"), machine)
		require.NoError(t, err)
		require.Equal(t, holdpoint.ApprovalWithdrawn, r.Approval.State)
		require.Equal(t, holdpoint.RunFailedTerminal, r.Run.State)
		require.Equal(t, holdpoint.ReasonWithdrawn, r.Run.Reason)
		require.NotNil(t, f.record(a.RunID).Challenges[0].RevokedAt)
		again, err := f.WithdrawApproval(f.ctx, f.tenant, a.ID, nil, machine)
		require.NoError(t, err)
		require.True(t, again.Repeated)
		require.Equal(t, r.Run, again.Run)
		require.Equal(t, 1, count(f.kinds(a.RunID), "approval.withdrawn"))
		_, err = f.Decide(f.ctx, f.answer(a, jane, holdpoint.DecisionApprove))
		requireCode(t, holdpoint.CodeAlreadyDecided, err)
		_, err = f.WithdrawApproval(f.ctx, f.tenant, "none", nil, machine)
		requireCode(t, holdpoint.CodeNotFound, err)
	})
	t.Run("withdraw an approved one: only what has not begun ends", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		r := f.released("k", "begun", "leased", "waiting")
		e := f.lease(2)
		f.begin(e[0])
		w, err := f.WithdrawApproval(f.ctx, f.tenant, r.Approval.ID, []byte("why"), machine)
		require.NoError(t, err)
		require.Equal(t, holdpoint.ApprovalWithdrawn, w.Approval.State)
		require.Equal(t, holdpoint.RunApproved, w.Run.State, "what has begun is finished")
		states := map[holdpoint.EffectState]int{}
		for _, e := range f.record(r.Run.ID).Effects {
			states[e.State]++
			if e.State == holdpoint.EffectFailed {
				require.Equal(t, "withdrawn", e.Reason)
			}
		}
		require.Equal(t, map[holdpoint.EffectState]int{holdpoint.EffectSending: 1, holdpoint.EffectFailed: 2}, states)
		require.Empty(t, f.tryBegin(e[1]), "a leaser that comes back finds its lease gone")
	})
	t.Run("nothing left to withdraw", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		r := f.released("k", "mail")
		f.begin(f.lease(1)[0])
		before := f.record(r.Run.ID)
		_, err := f.WithdrawApproval(f.ctx, f.tenant, r.Approval.ID, nil, machine)
		requireCode(t, holdpoint.CodeNotAllowedNow, err)
		require.Equal(t, before, f.record(r.Run.ID))
		_, a := f.held(f.work("rejected"), "mail")
		f.decide(a, jane, holdpoint.DecisionReject)
		_, err = f.WithdrawApproval(f.ctx, f.tenant, a.ID, nil, machine)
		requireCode(t, holdpoint.CodeNotAllowedNow, err)
	})
	t.Run("a possibly committed effect becomes unknown, and is not sent once it is proved absent", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		r := f.released("k", "mail")
		e := f.ambiguous(f.lease(1)[0], holdpoint.EffectPending)
		require.True(t, e.PossiblyCommitted)
		w, err := f.WithdrawApproval(f.ctx, f.tenant, r.Approval.ID, nil, machine)
		require.NoError(t, err)
		require.Equal(t, holdpoint.EffectUnknown, w.Effects[0].State)
		require.Equal(t, holdpoint.RunApproved, w.Run.State)
		f.advance(time.Minute)
		done := f.lookup("proved_absent", 0)
		require.Equal(t, holdpoint.EffectFailed, done.Effect.State)
		require.Equal(t, "withdrawn", done.Effect.Reason)
		require.True(t, done.RunEnded)
		require.Equal(t, holdpoint.ReasonWithdrawn, done.Run.Reason)
	})
}

func testChallenges(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	f := newFixture(t, open)
	fence := f.work("k")
	d := f.newDraft(fence, 1, "mail")
	_, a, err := f.HoldDraft(f.ctx, d)
	require.NoError(t, err)
	id := d.Challenges[0].ID

	t.Run("a token finds its challenge", func(t *testing.T) {
		for _, token := range []string{"t1", "t2", "t1"} {
			require.NoError(t, f.MintChallengeToken(f.ctx, f.tenant, id, token))
			c, err := f.ChallengeByToken(f.ctx, token)
			require.NoError(t, err)
			require.Equal(t, id, c.ID)
			require.Equal(t, f.tenant, c.Tenant)
			require.Equal(t, a.ApproveBy, c.ExpiresAt)
		}
		_, err := f.ChallengeByToken(f.ctx, "t3")
		requireCode(t, holdpoint.CodeNotFound, err)
		requireCode(t, holdpoint.CodeNotFound, f.MintChallengeToken(f.ctx, "other", id, "t3"))
		_, second := f.held(f.work("k2"), "mail")
		other := f.record(second.RunID).Challenges[0].ID
		requireCode(t, holdpoint.CodeNotFound, f.MintChallengeToken(f.ctx, f.tenant, other, "t1"))
		c, err := f.ChallengeByToken(f.ctx, "t1")
		require.NoError(t, err)
		require.Equal(t, id, c.ID, "a token stays with its challenge")
	})
	t.Run("the first opening is noted", func(t *testing.T) {
		first := f.now()
		for range 3 {
			c, err := f.OpenChallenge(f.ctx, f.tenant, id)
			require.NoError(t, err)
			require.Equal(t, first, *c.OpenedAt)
			f.advance(time.Second)
		}
		require.Equal(t, 1, count(f.kinds(a.RunID), "challenge.opened"))
		_, err := f.OpenChallenge(f.ctx, f.tenant, "none")
		requireCode(t, holdpoint.CodeNotFound, err)
	})
	t.Run("what is not live does not open", func(t *testing.T) {
		f.decide(a, jane, holdpoint.DecisionReject)
		_, err := f.OpenChallenge(f.ctx, f.tenant, id)
		requireCode(t, holdpoint.CodeNotFound, err)
		for name, end := range map[string]func(holdpoint.Approval){
			"withdrawn": func(a holdpoint.Approval) {
				_, err := f.WithdrawApproval(f.ctx, f.tenant, a.ID, nil, machine)
				require.NoError(t, err)
			},
			"decided by another": func(a holdpoint.Approval) { f.decide(a, joe, holdpoint.DecisionApprove) },
			"expired":            func(holdpoint.Approval) { f.advance(24 * time.Hour) },
		} {
			_, a := f.held(f.work(name), "mail")
			c := f.record(a.RunID).Challenges[0]
			end(a)
			_, err := f.OpenChallenge(f.ctx, f.tenant, c.ID)
			requireCode(t, holdpoint.CodeNotFound, err)
			require.Nil(t, f.record(a.RunID).Challenges[0].OpenedAt, name)
		}
	})
}

// outcome is what one of several parallel calls answered.
type outcome[T any] struct {
	value T
	err   error
}

// parallel makes n calls that start together and gives their answers.
func parallel[T any](n int, call func(i int) (T, error)) []outcome[T] {
	results := make([]outcome[T], n)
	var ready, done sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			ready.Done()
			<-gate
			results[i].value, results[i].err = call(i)
		}()
	}
	ready.Wait()
	close(gate)
	done.Wait()
	return results
}

// tail gives the last n of a list.
func tail[T any](list []T, n int) []T { return slices.Clone(list[max(0, len(list)-n):]) }
