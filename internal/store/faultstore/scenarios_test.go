package faultstore_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/connector/mirror"
)

func (w *world) claims(r client.ClaimRequest) func(context.Context) (client.Claim, error) {
	return func(ctx context.Context) (client.Claim, error) { return w.machine.Claim(ctx, r) }
}

// workScenarios are what a workflow calls.
var workScenarios = []scenario{
	{
		name:  "a workflow with an owner of its own",
		verbs: []string{"ClaimRuns", "RenewLease", "FinishStep", "RejectDraft", "HoldDraft", "KeyByHash", "TenantByName", "PolicyByHash", "Record", "Content", "ListPeople", "WorkDurations", "Events"},
		act: func(w *world) {
			a := ask(w, w.claims(claimOf("reply", "k")))
			require.Equal(w, holdpoint.Claimed, a.Outcome)
			id, work := a.Run.ID, client.Work{Owner: a.Lease.Owner, Version: a.Lease.Version}
			ask(w, func(ctx context.Context) (holdpoint.Lease, error) { return w.machine.Renew(ctx, id, work, 0) })
			s := ask(w, func(ctx context.Context) (client.StepAnswer, error) {
				return w.machine.BeginStep(ctx, id, "look", client.StepRequest{Work: work})
			})
			require.Equal(w, "run", s.Outcome)
			ask(w, func(ctx context.Context) (holdpoint.Step, error) {
				return w.machine.FinishStep(ctx, id, "look", client.StepEnd{Work: work, Result: json.RawMessage(`1`)})
			})
			d := w.drafted(id, draftOf(work, `{"reply":1}`))
			require.Equal(w, "repair", d.Outcome)
			require.Equal(w, 0, *d.RepairsLeft)
			require.Equal(w, "held", w.drafted(id, draftOf(work, `{"reply":"Hello"}`)).Outcome)
			require.Equal(w, "awaiting_human", string(ask(w, func(ctx context.Context) (client.Run, error) { return w.machine.Run(ctx, id) }).State))
			require.Equal(w, holdpoint.Duplicate, w.duplicate("reply", "k"))
		},
	},
	{
		name:  "a workflow that fails and comes back",
		verbs: []string{"EndWork", "ClaimRuns"},
		prepare: func(w *world) {
			id, _ := w.claimed("reply", "other")
			require.NotEmpty(w, id)
		},
		act: func(w *world) {
			a := ask(w, w.claims(claimOf("reply", "k")))
			id, work := a.Run.ID, client.Work{Owner: a.Lease.Owner, Version: a.Lease.Version}
			r := ask(w, func(ctx context.Context) (holdpoint.Run, error) {
				return w.machine.Fail(ctx, id, client.FailRequest{Work: work, Failure: client.Failure{Class: holdpoint.ClassModelTimeout}})
			})
			require.Equal(w, holdpoint.RunFailedRetryable, r.State)
			w.pass(time.Hour)
			owner := claimOf("", "").Owner
			a = ask(w, func(ctx context.Context) (client.Claim, error) {
				return w.machine.ClaimRun(ctx, id, client.ClaimRunRequest{ExecutionID: "second", Owner: owner})
			})
			require.Equal(w, holdpoint.Claimed, a.Outcome)
			work = client.Work{Owner: a.Lease.Owner, Version: a.Lease.Version, ExecutionID: "second"}
			r = ask(w, func(ctx context.Context) (holdpoint.Run, error) {
				return w.machine.Complete(ctx, id, work, json.RawMessage(`{"answer":42}`))
			})
			require.Equal(w, holdpoint.RunCompleted, r.State)
			again := ask(w, w.claims(claimOf("reply", "k")))
			require.Equal(w, holdpoint.Duplicate, again.Outcome)
			require.JSONEq(w, `{"answer":42}`, string(again.Run.Result))
		},
	},
	{
		name:  "a step whose end nobody knows",
		verbs: []string{"ResolveStep"},
		act: func(w *world) {
			begin := func(key string) (client.Claim, client.StepAnswer) {
				a := ask(w, w.claims(claimOf("reply", key)))
				require.Equal(w, holdpoint.Claimed, a.Outcome)
				return a, ask(w, func(ctx context.Context) (client.StepAnswer, error) {
					return w.machine.BeginStep(ctx, a.Run.ID, "pay", client.StepRequest{Work: client.Work{Owner: a.Lease.Owner, Version: a.Lease.Version}, SideEffect: true})
				})
			}
			_, s := begin("k")
			require.Equal(w, "run", s.Outcome)
			w.pass(time.Hour) // the worker is gone
			a, s := begin("k")
			require.Equal(w, "uncertain", s.Outcome)
			ask(w, func(ctx context.Context) (holdpoint.Step, error) {
				return w.ops.ResolveStep(ctx, a.Run.ID, "pay", client.StepResolution{Verdict: "done", Result: json.RawMessage(`1`), Reason: "seen"})
			}, holdpoint.CodeNotAllowedNow)
			_, s = begin2(w, a)
			require.Equal(w, "done", s.Outcome)
		},
	},
	{
		name:  "a correction and an end",
		verbs: []string{"ReplaceRun", "CancelRun"},
		prepare: func(w *world) {
			w.held("reply", "first")
			w.held("reply", "other")
		},
		act: func(w *world) {
			r := ask(w, func(ctx context.Context) (client.Replacement, error) {
				return w.ops.Replace(ctx, w.runOf("first"), client.ReplaceRequest{Key: "corrected-17", Payload: json.RawMessage(`{"to":"joe@customer.example"}`), Reason: "wrong address"})
			})
			require.Equal(w, "corrected-17", r.Run.Key)
			require.Equal(w, r.Run.ID, r.Replaced.ReplacedBy)
			ask(w, func(ctx context.Context) (holdpoint.Run, error) {
				return w.ops.CancelRun(ctx, w.runOf("other"), "not wanted")
			}, holdpoint.CodeNotAllowedNow)
			require.Equal(w, holdpoint.Claimed, ask(w, w.claims(client.ClaimRequest{Workflow: "reply", Key: "corrected-17", Owner: claimOf("", "").Owner,
				Payload: json.RawMessage(`{"to":"joe@customer.example"}`)})).Outcome)
		},
	},
}

// begin2 begins the step of a run once more under the same lease.
func begin2(w *world, a client.Claim) (client.Claim, client.StepAnswer) {
	return a, ask(w, func(ctx context.Context) (client.StepAnswer, error) {
		return w.machine.BeginStep(ctx, a.Run.ID, "pay", client.StepRequest{Work: client.Work{Owner: a.Lease.Owner, Version: a.Lease.Version}, SideEffect: true})
	})
}

func (w *world) drafted(id string, r client.DraftRequest) client.Draft {
	w.Helper()
	return ask(w, func(ctx context.Context) (client.Draft, error) { return w.machine.SubmitDraft(ctx, id, r) })
}

// runOf finds a run by its key, below the faults.
func (w *world) runOf(key string) string {
	w.Helper()
	return w.find(key).ID
}

// decisionScenarios are what people call who decide.
var decisionScenarios = []scenario{
	{
		name:    "a decision over the API",
		verbs:   []string{"Decide", "FindApprovals", "ApprovalByID", "PersonByID", "FirstForTarget", "AddEvents", "ListPeople", "Record"},
		prepare: func(w *world) { w.held("reply", "k") },
		act: func(w *world) {
			page := ask(w, func(ctx context.Context) (client.ApprovalPage, error) {
				return w.ana.Approvals(ctx, holdpoint.ApprovalPending, "", 0)
			})
			require.Len(w, page.Approvals, 1)
			card := ask(w, func(ctx context.Context) (client.Card, error) { return w.ana.Approval(ctx, page.Approvals[0].ID) })
			out := ask(w, func(ctx context.Context) (client.Decided, error) {
				return w.ana.Decide(ctx, card.Approval.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: card.Approval.Digest, Reason: "fine"})
			})
			require.Equal(w, holdpoint.RunApproved, out.Run.State)
			require.Len(w, out.Effects, 1)
			w.dispatch()
			w.effect(out.Run.ID, holdpoint.EffectCompleted)
		},
	},
	{
		name:    "a decision by link",
		verbs:   []string{"LeaseMessages", "MintChallengeToken", "SettleMessage", "ChallengeByToken", "ApprovalByID", "Now", "PersonByEmail", "OpenChallenge", "Decide"},
		prepare: func(w *world) { w.held("memo", "k") },
		act: func(w *world) {
			w.dispatch()
			token := ""
			w.until("the message is delivered", func() bool {
				rec := w.record("k")
				return len(rec.Messages) == 1 && rec.Messages[0].State == "delivered"
			})
			ids := map[string]bool{}
			for _, m := range w.provider.Writes() {
				if m.Path != "/inbox" {
					continue
				}
				var body struct{ Link string }
				require.NoError(w, json.Unmarshal(m.Body, &body))
				_, token, _ = strings.Cut(body.Link, "/approve/")
				ids[m.Header.Get("webhook-id")] = true
			}
			require.Len(w, ids, 1, "a message that is delivered twice says that it is the same")
			b := w.browser()
			_, page := b.do(http.MethodGet, "/approve/"+token, nil)
			_, page = b.submitTo(page, "/approve/"+token, "open", "link")
			status, page := b.submitTo(page, "/approve/"+token, "decision", "approve")
			require.Equal(w, http.StatusOK, status, page)
			w.effect(w.runOf("k"), holdpoint.EffectCompleted)
		},
	},
	{
		name:    "a decision in the console",
		verbs:   []string{"CreateSession", "SessionByHash", "PersonByEmail", "ListTenants", "FindApprovals", "FindRuns", "Decide", "SetLanguage", "EndSession"},
		prepare: func(w *world) { w.held("reply", "k") },
		act: func(w *world) {
			b := w.browser()
			_, page := b.do(http.MethodGet, "/login", nil)
			status, _ := b.submit(page, "/login", "email", "ana@acme.example", "password", password)
			require.Equal(w, http.StatusSeeOther, status)
			_, page = b.do(http.MethodGet, "/console", nil)
			id := w.approvalOf("k")
			require.Contains(w, page, id)
			b.submit(page, "/console/language", "language", "en")
			b.do(http.MethodGet, "/console/runs", nil)
			path := "/console/approvals/" + id
			_, page = b.do(http.MethodGet, path, nil)
			status, _ = b.submit(page, path, "decision", "approve")
			require.Equal(w, http.StatusSeeOther, status)
			_, page = b.do(http.MethodGet, path, nil)
			b.submit(page, "/logout")
			status, _ = b.do(http.MethodGet, "/console", nil)
			require.Equal(w, http.StatusSeeOther, status, "signed out")
			w.dispatch()
			w.effect(w.runOf("k"), holdpoint.EffectCompleted)
		},
	},
	{
		name:    "a question that is taken back",
		verbs:   []string{"WithdrawApproval"},
		prepare: func(w *world) { w.held("reply", "k") },
		act: func(w *world) {
			ask(w, func(ctx context.Context) (client.Withdrawal, error) {
				return w.ops.Withdraw(ctx, w.approvalOf("k"), "not wanted")
			}, holdpoint.CodeNotAllowedNow)
		},
	},
	{
		name:    "a question that nobody answers",
		verbs:   []string{"SweepRuns"},
		prepare: func(w *world) { w.held("reply", "k") },
		act: func(w *world) {
			w.pass(25 * time.Hour)
			w.dispatch()
			w.until("the run has ended", func() bool { return w.find("k").State == holdpoint.RunFailedTerminal })
		},
	},
	{
		name:    "people are told that nobody answered",
		verbs:   []string{"AddMessages"},
		prepare: func(w *world) { w.held("short", "k") },
		act: func(w *world) {
			w.pass(25 * time.Hour)
			w.dispatch()
			w.until("the news has left", func() bool {
				rec := w.record("k")
				gone := 0
				for _, m := range rec.Messages {
					if m.State != "pending" {
						gone++
					}
				}
				return gone == 3
			})
		},
	},
}

// effectScenarios are what the loops call.
var effectScenarios = []scenario{
	{
		name:    "an effect is sent",
		verbs:   []string{"LeaseEffects", "BeginAttempts", "SettleAttempts", "ListTenants", "TenantByName", "PolicyByHash", "Content", "PersonByID", "Proof"},
		prepare: func(w *world) { w.approved("reply", "k") },
		act: func(w *world) {
			w.dispatch()
			w.effect(w.runOf("k"), holdpoint.EffectCompleted)
		},
	},
	{
		name:    "a dead process is found out about, and the provider is asked",
		verbs:   []string{"RecoverEffects", "LeaseLookups", "SettleLookup"},
		prepare: func(w *world) { w.begun("reply", "k"); w.pass(time.Minute) },
		act: func(w *world) {
			w.dispatch()
			w.effect(w.runOf("k"), holdpoint.EffectCompleted)
		},
	},
	{
		name:  "a connector is held and let go",
		verbs: []string{"SettleAttempts", "ConnectorHolds", "Proof", "ReleaseConnector"},
		prepare: func(w *world) {
			w.provider.Queue("/notes", mirror.Status(http.StatusUnauthorized, "{}", nil))
			w.approved("reply", "k")
		},
		act: func(w *world) {
			w.dispatch()
			w.until("the connector is held", func() bool {
				all := ask(w, w.ops.Connectors)
				return len(all) == 1 && len(all[0].Holds) == 1
			})
			ask(w, func(ctx context.Context) (int, error) { return w.ops.ReleaseConnector(ctx, "crm") })
			w.effect(w.runOf("k"), holdpoint.EffectCompleted)
		},
	},
	{
		name:  "an effect whose authority is gone goes back",
		verbs: []string{"ReleaseEffects"},
		prepare: func(w *world) {
			w.approved("reply", "k")
			require.NoError(w, w.ops.DisableUser(w.Context(), "ana@acme.example"))
		},
		act: func(w *world) {
			w.dispatch()
			w.until("the effect is held", func() bool { return w.record("k").Effects[0].Hold == holdpoint.HoldAuthority })
		},
	},
	{
		name:  "an effect waits too long",
		verbs: []string{"CloseExpired"},
		prepare: func(w *world) {
			w.switchOn(false)
			w.approved("short", "k")
			w.pass(49 * time.Hour)
		},
		act: func(w *world) {
			w.dispatch()
			w.until("the effect is held", func() bool { return w.record("k").Effects[0].Hold == holdpoint.HoldExpired })
			w.pass(2 * time.Hour)
			w.effect(w.runOf("k"), holdpoint.EffectFailed)
		},
	},
}
