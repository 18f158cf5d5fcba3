package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/httpserver"
	"github.com/holdpoint/holdpoint/internal/payload"
)

func newOf(zero any) any { return reflect.New(reflect.TypeOf(zero)).Interface() }

func TestClaimDraftDecide(t *testing.T) {
	w := newWorld(t, Options{})
	ctx := t.Context()
	d := w.held("ticket-reply", "T-1")
	require.Equal(t, holdpoint.RunAwaitingHuman, d.Run.State)
	require.Equal(t, "http://127.0.0.1:8470/console/approvals/"+d.Approval.ID, d.Approval.PageURL)

	page, err := w.ana.Approvals(ctx, holdpoint.ApprovalPending, "", 0)
	require.NoError(t, err)
	require.Len(t, page.Approvals, 1)
	card, err := w.ana.Approval(ctx, d.Approval.ID)
	require.NoError(t, err)
	require.True(t, card.MayDecide, card.WhyNot)
	require.Equal(t, 1, card.Missing)
	require.Equal(t, []string{"ana@acme.example", "ben@acme.example"}, card.Eligible)
	require.Equal(t, "jane@acme.example", card.Effects[0].Target)
	require.JSONEq(t, `{"text":"s3cret reply"}`, string(card.Effects[0].Payload))
	require.JSONEq(t, `{"reply":"s3cret reply"}`, string(card.Draft.Output))
	require.NotEmpty(t, card.Sentence)
	german := w.do("ana", "GET", "/v1/approvals/"+d.Approval.ID, "", "Accept-Language", "de")
	require.NotEqual(t, card.Sentence, german.json["sentence"])

	_, err = w.ana.Decide(ctx, d.Approval.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: "another"})
	w.says(err, holdpoint.CodeStaleDigest)
	_, err = w.ana.Decide(ctx, d.Approval.ID, client.DecisionRequest{Decision: holdpoint.DecisionReject, Digest: card.Approval.Digest})
	w.says(err, holdpoint.CodeReasonRequired)
	out, err := w.ana.Decide(ctx, d.Approval.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: card.Approval.Digest})
	require.NoError(t, err)
	require.Equal(t, holdpoint.ApprovalApproved, out.Approval.State)
	require.Equal(t, "ana@acme.example", out.Decision.Email)
	require.Equal(t, holdpoint.HowToken, out.Decision.How)
	require.Len(t, out.Effects, 1)
	again, err := w.ana.Decide(ctx, d.Approval.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: card.Approval.Digest})
	require.NoError(t, err)
	require.True(t, again.Repeated)
	_, err = w.client("ben").Decide(ctx, d.Approval.ID, client.DecisionRequest{Decision: holdpoint.DecisionReject, Digest: card.Approval.Digest, Reason: "no"})
	w.says(err, holdpoint.CodeAlreadyDecided)
	var e *holdpoint.Error
	require.ErrorAs(t, err, &e)
	require.NotNil(t, e.Detail["standing"])

	run, err := w.machine.Run(ctx, d.Run.ID)
	require.NoError(t, err)
	require.Equal(t, holdpoint.RunApproved, run.State)
	require.True(t, run.Content, "the machine works on it")
	require.JSONEq(t, event, string(run.Payload))
	require.Equal(t, "ana@acme.example", run.Answers.ApprovedBy)
	require.NotEmpty(t, run.SafeActions)
	run, err = w.reader.Run(ctx, d.Run.ID)
	require.NoError(t, err)
	require.False(t, run.Content)
	raw := w.do("reader", "GET", "/v1/runs/"+d.Run.ID, "")
	require.NotContains(t, raw.text, "s3cret")
	require.NotContains(t, raw.text, "jane@")
	require.NotContains(t, raw.text, "null", "lists are never null")

	events, err := w.ops.Evidence(ctx, d.Run.ID)
	require.NoError(t, err)
	require.Equal(t, "run.claimed", events[0].Type)
	tenant, err := w.ops.Evidence(ctx, "")
	require.NoError(t, err)
	require.NotEmpty(t, tenant)
	require.NotContains(t, w.logged(), "s3cret")
	require.NotContains(t, w.logged(), "hp_")
	require.NotContains(t, w.logged(), d.Run.ID, "the log names routes, not URLs")
	require.Contains(t, w.logged(), `"route":"POST /v1/approvals/{id}/decisions"`)
}

func TestClaimOutcomes(t *testing.T) {
	w := newWorld(t, Options{})
	ctx := t.Context()
	r := w.do("machine", "POST", "/v1/claims", claimBody("ticket-reply", "T-1"))
	require.Equal(t, http.StatusCreated, r.StatusCode)
	require.Equal(t, "claimed", r.json["outcome"])
	require.NotEmpty(t, r.json["lease"])
	run, lease := r.json["run"].(map[string]any), r.json["lease"].(map[string]any)

	r = w.do("machine", "POST", "/v1/claims", claimBody("ticket-reply", "T-1"))
	require.Equal(t, http.StatusConflict, r.StatusCode)
	require.Equal(t, "application/json", r.Header.Get("Content-Type"))
	require.Equal(t, "busy", r.json["outcome"])
	require.NotContains(t, r.json, "lease")
	wait, err := strconv.Atoi(r.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.Positive(t, wait)
	busy, err := w.machine.Claim(ctx, client.ClaimRequest{Workflow: "ticket-reply", Key: "T-1", Payload: json.RawMessage(event)})
	require.NoError(t, err)
	require.Equal(t, holdpoint.Busy, busy.Outcome)
	require.Positive(t, busy.RetryAfter)

	r = w.do("machine", "POST", "/v1/claims", `{"workflow":"ticket-reply","key":"T-1","payload":{"created_by":"x"}}`)
	require.Equal(t, http.StatusUnprocessableEntity, r.StatusCode)
	require.Equal(t, "mismatch", r.json["outcome"])
	require.Equal(t, run["id"], r.json["run"].(map[string]any)["id"])

	work := client.Work{Owner: lease["owner"].(string), Version: int64(lease["version"].(float64))}
	done, err := w.machine.Complete(ctx, run["id"].(string), work, json.RawMessage(`{"a":[1.50]}`))
	require.NoError(t, err)
	require.Equal(t, holdpoint.RunCompleted, done.State)
	r = w.do("machine", "POST", "/v1/claims", claimBody("ticket-reply", "T-1"))
	require.Equal(t, http.StatusOK, r.StatusCode)
	require.Equal(t, "duplicate", r.json["outcome"])
	require.Contains(t, r.text, `"result":{"a":[1.50]}`)

	a, err := w.machine.Claim(ctx, client.ClaimRequest{Workflow: "order", Operation: &holdpoint.Operation{Source: "shop", Record: "9", Action: "book"}, Payload: json.RawMessage(event),
		Trigger: &client.Trigger{Source: "n8n", ExecutionID: "e-1"}})
	require.NoError(t, err)
	require.Equal(t, holdpoint.Claimed, a.Outcome)
	byRecord, err := w.machine.Runs(ctx, client.RunQuery{Record: "9", State: holdpoint.RunProcessing, Workflow: "order"})
	require.NoError(t, err)
	require.Len(t, byRecord.Runs, 1)
	byID, err := w.machine.ClaimRun(ctx, a.Run.ID, client.ClaimRunRequest{ExecutionID: "e-2"})
	require.NoError(t, err)
	require.Equal(t, holdpoint.Busy, byID.Outcome)
	_, err = w.machine.ClaimRun(ctx, "no-such-run", client.ClaimRunRequest{ExecutionID: "e-2"})
	w.says(err, holdpoint.CodeNotFound)
}

func TestIdempotencyKeyHeader(t *testing.T) {
	w := newWorld(t, Options{})
	const noKey = `{"workflow":"ticket-reply","payload":` + event + `}`
	r := w.do("machine", "POST", "/v1/claims", noKey, "Idempotency-Key", "H-1")
	require.Equal(t, http.StatusCreated, r.StatusCode, r.text)
	require.Equal(t, "H-1", r.json["run"].(map[string]any)["key"])
	r = w.do("machine", "POST", "/v1/claims", claimBody("ticket-reply", "H-1"), "Idempotency-Key", "H-1")
	require.Equal(t, "busy", r.json["outcome"])
	w.refused(w.do("machine", "POST", "/v1/claims", claimBody("ticket-reply", "H-1"), "Idempotency-Key", "H-2"), holdpoint.CodeInvalidKey)
	w.refused(w.do("machine", "POST", "/v1/claims", noKey, "Idempotency-Key", ""), holdpoint.CodeInvalidKey)
	w.refused(w.do("machine", "POST", "/v1/claims", noKey), holdpoint.CodeInvalidKey)
	w.refused(w.do("machine", "POST", "/v1/claims", `{"workflow":"ticket-reply","operation":{"source":"a","record":"b","action":"c"},"payload":{}}`, "Idempotency-Key", "H-3"), holdpoint.CodeInvalidKey)
	w.refused(w.do("machine", "POST", "/v1/claims/batch", `{"claims":[`+claimBody("ticket-reply", "H-1")+`]}`, "Idempotency-Key", "H-1"), holdpoint.CodeInvalidKey)
}

func TestClaimBatchAnswersEachAsIfSentAlone(t *testing.T) {
	w := newWorld(t, Options{})
	one := claimBody("ticket-reply", "B-1")
	r := w.do("machine", "POST", "/v1/claims/batch", `{"claims":[`+strings.Join([]string{one, one, claimBody("none", "B-2"), `{"workflow":"ticket-reply","naem":1}`,
		`{"workflow":"ticket-reply","key":"B-3","key":"B-4","payload":{}}`, `7`, claimBody("ticket-reply", "ä"), claimBody("ticket-reply", "B-5")}, ",")+`]}`)
	require.Equal(t, http.StatusOK, r.StatusCode, r.text)
	var statuses []float64
	var said []string
	for _, x := range r.json["results"].([]any) {
		m := x.(map[string]any)
		statuses = append(statuses, m["status"].(float64))
		if p, ok := m["problem"].(map[string]any); ok {
			said = append(said, p["code"].(string))
			require.Equal(t, r.Header.Get("X-Request-Id"), p["request_id"])
			continue
		}
		said = append(said, m["outcome"].(string))
	}
	require.Equal(t, []string{"claimed", "busy", "unknown_workflow", "invalid_request", "invalid_json", "invalid_request", "invalid_key", "claimed"}, said)
	require.Equal(t, []float64{201, 409, 404, 400, 400, 400, 400, 201}, statuses)

	results, err := w.machine.ClaimBatch(t.Context(), []client.ClaimRequest{{Workflow: "ticket-reply", Key: "B-1", Payload: json.RawMessage(event)}, {Workflow: "none", Key: "x", Payload: json.RawMessage(`{}`)}})
	require.NoError(t, err)
	require.Equal(t, holdpoint.Busy, results[0].Outcome)
	require.Positive(t, results[0].RetryAfter)
	w.says(results[1].Err, holdpoint.CodeUnknownWorkflow)

	many := strings.TrimSuffix(strings.Repeat(one+",", 501), ",")
	for body, code := range map[string]holdpoint.Code{
		`{"claims":[` + many + `]}`: holdpoint.CodeInvalidRequest, `{"claims":[]}`: holdpoint.CodeInvalidRequest, `{}`: holdpoint.CodeInvalidRequest,
		`[]`: holdpoint.CodeInvalidRequest, `{"claims":{}}`: holdpoint.CodeInvalidRequest, `{"claims":[` + one + `],"claims":[]}`: holdpoint.CodeInvalidRequest,
		`{"Claims":[` + one + `]}`: holdpoint.CodeInvalidRequest, `{"claims":[` + one: holdpoint.CodeInvalidJSON, `{"claims":[` + one + `]} x`: holdpoint.CodeInvalidJSON,
	} {
		w.refused(w.do("machine", "POST", "/v1/claims/batch", body), code)
	}
	full := w.do("machine", "POST", "/v1/claims/batch", `{"claims":[`+strings.TrimSuffix(strings.Repeat(one+",", 500), ",")+`]}`)
	require.Len(t, full.json["results"], 500)
	lacks := w.do("reader", "POST", "/v1/claims/batch", `{"claims":[`+one+`]}`)
	require.Equal(t, http.StatusOK, lacks.StatusCode)
	require.Contains(t, lacks.text, "insufficient_scope")
}

func TestWorkCalls(t *testing.T) {
	w := newWorld(t, Options{})
	ctx := t.Context()
	a, work := w.claimed("ticket-reply", "W-1")
	lease, err := w.machine.Renew(ctx, a.Run.ID, work, time.Minute)
	require.NoError(t, err)
	require.Equal(t, work.Version, lease.Version)
	_, err = w.machine.Renew(ctx, a.Run.ID, client.Work{Owner: work.Owner, Version: work.Version + 1}, 0)
	w.says(err, holdpoint.CodeLeaseLost)

	step := client.StepRequest{Work: work, InputHash: "in", SideEffect: true}
	s, err := w.machine.BeginStep(ctx, a.Run.ID, "look up/1", step)
	require.NoError(t, err)
	require.Equal(t, "run", s.Outcome)
	r := w.do("machine", "POST", "/v1/runs/"+a.Run.ID+"/steps/look%20up%2F1/begin", fmt.Sprintf(`{"owner":%q,"version":%d,"side_effect":true,"input_hash":"in"}`, work.Owner, work.Version))
	if r.StatusCode == http.StatusConflict {
		require.Equal(t, "in_progress", r.json["code"])
		require.NotEmpty(t, r.Header.Get("Retry-After"))
	} else {
		require.Equal(t, http.StatusCreated, r.StatusCode, r.text)
	}
	finished, err := w.machine.FinishStep(ctx, a.Run.ID, "look up/1", client.StepEnd{Work: work, Result: json.RawMessage(`{"n":1}`)})
	require.NoError(t, err)
	require.Equal(t, holdpoint.StepCompleted, finished.State)
	s, err = w.machine.BeginStep(ctx, a.Run.ID, "look up/1", step)
	require.NoError(t, err)
	require.Equal(t, "done", s.Outcome)
	require.JSONEq(t, `{"n":1}`, string(s.Result))
	_, err = w.machine.FinishStep(ctx, a.Run.ID, "other", client.StepEnd{Work: work, Failed: &client.Failure{Class: "nonsense"}})
	w.says(err, holdpoint.CodeInvalidRequest)
	_, err = w.ops.ResolveStep(ctx, a.Run.ID, "look up/1", client.StepResolution{Verdict: "done", Reason: "seen"})
	w.says(err, holdpoint.CodeNotAllowedNow)
	_, err = w.machine.ResolveStep(ctx, a.Run.ID, "look up/1", client.StepResolution{Verdict: "done", Reason: "seen"})
	w.says(err, holdpoint.CodeForbidden)

	d, err := w.machine.SubmitDraft(ctx, a.Run.ID, client.DraftRequest{Work: work, Output: json.RawMessage(`"not json"`)})
	require.NoError(t, err)
	require.Equal(t, "repair", d.Outcome)
	require.NotEmpty(t, d.Errors)
	require.Equal(t, 0, *d.RepairsLeft)
	require.NotEmpty(t, d.RepairPrompt)
	r = w.do("machine", "POST", "/v1/runs/"+a.Run.ID+"/draft", fmt.Sprintf(`{"owner":%q,"version":%d,"output":{"x":1},"model":{"name":"m"}}`, work.Owner, work.Version))
	require.Equal(t, http.StatusUnprocessableEntity, r.StatusCode)
	require.Equal(t, "failed", r.json["outcome"])

	b, work := w.claimed("ticket-reply", "W-2")
	wait := holdpoint.Duration(time.Hour)
	run, err := w.machine.Fail(ctx, b.Run.ID, client.FailRequest{Work: work, Failure: client.Failure{Class: holdpoint.ClassModelTimeout, Message: "slow"}, RetryAfter: &wait})
	require.NoError(t, err)
	require.Equal(t, holdpoint.RunFailedRetryable, run.State)
	run, err = w.ops.CancelRun(ctx, b.Run.ID, "no longer wanted")
	require.NoError(t, err)
	require.Equal(t, holdpoint.ReasonCancelled, run.Reason)
	_, err = w.machine.CancelRun(ctx, b.Run.ID, "no longer wanted")
	w.says(err, holdpoint.CodeForbidden)
}

// TestAnExpiredLease takes a run over by its id, and meets a step whose side effect nobody knows about.
func TestAnExpiredLease(t *testing.T) {
	w := newWorld(t, Options{})
	ctx := t.Context()
	a, work := w.claimed("ticket-reply", "L-1")
	_, err := w.machine.BeginStep(ctx, a.Run.ID, "charge", client.StepRequest{Work: work, SideEffect: true})
	require.NoError(t, err)
	w.ahead.Store(int64(time.Hour))
	_, err = w.machine.Renew(ctx, a.Run.ID, work, 0)
	w.says(err, holdpoint.CodeLeaseLost)
	_, err = w.machine.SubmitDraft(ctx, a.Run.ID, client.DraftRequest{Work: work, Output: json.RawMessage(`{"reply":"late"}`)})
	w.says(err, holdpoint.CodeLeaseLost)

	next, err := w.machine.ClaimRun(ctx, a.Run.ID, client.ClaimRunRequest{ExecutionID: "e-2"})
	require.NoError(t, err)
	require.Equal(t, holdpoint.Claimed, next.Outcome)
	require.Equal(t, "expired_lease", next.RecoveredFrom)
	work = client.Work{Owner: next.Lease.Owner, Version: next.Lease.Version, ExecutionID: "e-2"}
	s, err := w.machine.BeginStep(ctx, a.Run.ID, "charge", client.StepRequest{Work: work, SideEffect: true})
	require.NoError(t, err)
	require.Equal(t, "uncertain", s.Outcome)
	require.Equal(t, holdpoint.CodeUncertain, s.Code)
	_, err = w.machine.BeginStep(ctx, a.Run.ID, "charge", client.StepRequest{Work: client.Work{Owner: work.Owner, Version: work.Version, ExecutionID: "e-3"}})
	w.says(err, holdpoint.CodeLeaseOtherExecution)
	step, err := w.ops.ResolveStep(ctx, a.Run.ID, "charge", client.StepResolution{Verdict: "done", Result: json.RawMessage(`{"id":9}`), Reason: "seen at the bank"})
	require.NoError(t, err)
	require.Equal(t, holdpoint.StepCompleted, step.State)

	mismatch, err := w.machine.ClaimRun(ctx, a.Run.ID, client.ClaimRunRequest{ExecutionID: "e-2", Fingerprint: strings.Repeat("0", 64)})
	require.NoError(t, err)
	require.Equal(t, holdpoint.Mismatch, mismatch.Outcome)
	_, err = w.machine.Complete(ctx, a.Run.ID, work, nil)
	require.NoError(t, err)
	again, err := w.machine.ClaimRun(ctx, a.Run.ID, client.ClaimRunRequest{ExecutionID: "e-3"})
	require.NoError(t, err)
	require.Equal(t, holdpoint.Duplicate, again.Outcome)
}

func TestReplaceAndWithdraw(t *testing.T) {
	w := newWorld(t, Options{})
	ctx := t.Context()
	d := w.held("ticket-reply", "R-1")
	_, err := w.ana.Withdraw(ctx, d.Approval.ID, "wrong")
	w.says(err, holdpoint.CodeForbidden)
	gone, err := w.ops.Withdraw(ctx, d.Approval.ID, "wrong")
	require.NoError(t, err)
	require.Equal(t, holdpoint.ApprovalWithdrawn, gone.Approval.State)
	_, err = w.ops.Replace(ctx, d.Run.ID, client.ReplaceRequest{Key: "R-1-retry", Payload: json.RawMessage(event), Reason: "again"})
	w.says(err, holdpoint.CodeDerivedKey)
	made, err := w.ops.Replace(ctx, d.Run.ID, client.ReplaceRequest{Key: "X-77", Payload: json.RawMessage(event), Reason: "corrected"})
	require.NoError(t, err)
	require.True(t, made.Created)
	require.Equal(t, d.Run.ID, made.Run.Replaces)
	require.Equal(t, made.Run.ID, made.Replaced.ReplacedBy)
	linked, err := w.ops.Replace(ctx, d.Run.ID, client.ReplaceRequest{Key: "X-77", Payload: json.RawMessage(event), Reason: "corrected"})
	require.NoError(t, err)
	require.False(t, linked.Created)
	require.Equal(t, made.Run.ID, linked.Run.ID)
}

func TestEffectsSwitchesAndConnectors(t *testing.T) {
	w := newWorld(t, Options{})
	ctx := t.Context()
	x := w.approved("ticket-reply", "E-1").Effects[0]
	page, err := w.ops.Effects(ctx, client.EffectQuery{State: holdpoint.EffectPending, Held: true, RunID: x.RunID, Limit: 1})
	require.NoError(t, err)
	require.Len(t, page.Effects, 1)
	require.Equal(t, holdpoint.HoldSwitch, page.Effects[0].Hold, "a fresh tenant's switches are off")
	cancelled, err := w.ops.CancelEffect(ctx, x.ID, "not now")
	require.NoError(t, err)
	require.Equal(t, holdpoint.EffectFailed, cancelled.State)
	_, err = w.ops.CancelEffect(ctx, x.ID, "not now")
	w.says(err, holdpoint.CodeNotAllowedNow)

	x = w.unknown("order", "E-2")
	seen, err := w.ops.Effect(ctx, x.ID)
	require.NoError(t, err)
	require.Equal(t, holdpoint.EffectUnknown, seen.State)
	require.Len(t, seen.AttemptLog, 1)
	_, err = w.ops.Reconcile(ctx, x.ID)
	w.says(err, holdpoint.CodeNotAllowedNow)
	_, err = w.ops.Resolve(ctx, x.ID, client.Resolution{Verdict: holdpoint.VerdictSent})
	w.says(err, holdpoint.CodeReasonRequired)
	sent, err := w.ops.Resolve(ctx, x.ID, client.Resolution{Verdict: holdpoint.VerdictSent, ProviderID: "p-1", Reason: "seen there"})
	require.NoError(t, err)
	require.Equal(t, holdpoint.EffectCompleted, sent.State)
	x = w.unknown("ticket-reply", "E-3")
	due, err := w.ops.Reconcile(ctx, x.ID)
	require.NoError(t, err)
	require.NotNil(t, due.NextLookupAt)
	r := w.do("ops", "POST", "/v1/effects/"+x.ID+"/reconcile", `{}`)
	require.Equal(t, http.StatusOK, r.StatusCode)

	all, err := w.machine.Switches(ctx)
	require.NoError(t, err)
	require.True(t, all.Enabled)
	off, err := w.ops.SetSwitch(ctx, "connector:crm", false, "maintenance")
	require.NoError(t, err)
	require.False(t, off.On)
	require.Equal(t, "connector:crm", off.Scope)
	_, err = w.ops.SetSwitch(ctx, "nonsense", false, "x")
	w.says(err, holdpoint.CodeForbidden)
	_, err = w.ana.SetSwitch(ctx, "tenant", false, "x")
	w.says(err, holdpoint.CodeForbidden)
	w.refused(w.do("ops", "PUT", "/v1/switches/tenant", `{"reason":"x"}`), holdpoint.CodeInvalidRequest)
	w.refused(w.do("ops", "PUT", "/v1/switches/tenant", `{"on":true}`), holdpoint.CodeReasonRequired)

	connectors, err := w.reader.Connectors(ctx)
	require.NoError(t, err)
	require.Len(t, connectors, 2)
	n, err := w.ops.ReleaseConnector(ctx, "crm")
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = w.ops.ReleaseConnector(ctx, "none")
	w.says(err, holdpoint.CodeNotFound)
}

func TestPoliciesAndPeople(t *testing.T) {
	w := newWorld(t, Options{})
	ctx := t.Context()
	active, err := w.ops.Policy(ctx, "active")
	require.NoError(t, err)
	next := strings.Replace(active.Document, "repairs: 1", "repairs: 2", 1)
	stored, err := w.ops.PutPolicy(ctx, next, active.Files)
	require.NoError(t, err)
	w.says(w.ops.ActivatePolicy(ctx, stored.Hash, ""), holdpoint.CodePolicyMoved)
	require.NoError(t, w.ops.ActivatePolicy(ctx, stored.Hash, active.Hash))
	all, err := w.ops.Policies(ctx)
	require.NoError(t, err)
	require.Len(t, all, 2)
	_, err = w.ops.PutPolicy(ctx, "version: 1\nnonsense: true\n", nil)
	w.says(err, holdpoint.CodeInvalidPolicy)
	var e *holdpoint.Error
	require.ErrorAs(t, err, &e)
	require.NotEmpty(t, e.Detail["findings"])
	_, err = w.ana.PutPolicy(ctx, next, active.Files)
	w.says(err, holdpoint.CodeForbidden)

	made, err := w.ops.AddUser(ctx, "new@acme.example", "")
	require.NoError(t, err)
	require.NotEmpty(t, made.Password)
	_, err = w.ops.AddUser(ctx, "new@acme.example", "")
	w.says(err, holdpoint.CodeExists)
	require.NoError(t, w.ops.GrantRole(ctx, made.Email, "auditor"))
	w.says(w.ops.GrantRole(ctx, made.Email, "nonsense"), holdpoint.CodeInvalidRequest)
	users, err := w.ops.Users(ctx)
	require.NoError(t, err)
	require.Len(t, users, 4)
	require.NoError(t, w.ops.RevokeRole(ctx, made.Email, "auditor"))
	w.says(w.ops.RevokeRole(ctx, made.Email, "auditor"), holdpoint.CodeNotFound)
	require.NoError(t, w.ops.DisableUser(ctx, made.Email))
	require.NoError(t, w.ops.EnableUser(ctx, made.Email))
	w.says(w.ops.DisableUser(ctx, "ops@acme.example"), holdpoint.CodeNotAllowedNow)

	key, err := w.ops.CreateKey(ctx, "second", []holdpoint.Scope{holdpoint.ScopeRead})
	require.NoError(t, err)
	second := client.New(w.url, key.Key)
	me, err := second.Me(ctx)
	require.NoError(t, err)
	require.Equal(t, key.ID, me.ID)
	require.Equal(t, holdpoint.ActorMachine, me.Kind)
	require.NoError(t, w.ops.RevokeKey(ctx, key.ID))
	_, err = second.Me(ctx)
	w.says(err, holdpoint.CodeUnauthenticated)
	keys, err := w.ops.Keys(ctx)
	require.NoError(t, err)
	require.NotEmpty(t, keys)

	token, err := w.ana.CreateToken(ctx, "phone", []holdpoint.Scope{holdpoint.ScopeDecide})
	require.NoError(t, err)
	_, err = w.ana.CreateToken(ctx, "more", []holdpoint.Scope{holdpoint.ScopeAdmin})
	w.says(err, holdpoint.CodeInsufficientScope)
	for _, k := range keys {
		if k.Kind == holdpoint.ActorMachine {
			w.says(w.ana.RevokeKey(ctx, k.ID), holdpoint.CodeForbidden)
		}
	}
	require.NoError(t, w.ana.RevokeKey(ctx, token.ID))
	who, err := w.ana.Me(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"support-lead"}, who.Roles)
}

func TestOtherTenantsObjectsLookLikeNone(t *testing.T) {
	w := newWorld(t, Options{})
	w.tenant("other")
	d := w.held("ticket-reply", "O-1")
	x := w.approved("ticket-reply", "O-2").Effects[0]
	for _, path := range []string{"/v1/runs/" + d.Run.ID, "/v1/runs/" + d.Run.ID + "/evidence", "/v1/approvals/" + d.Approval.ID, "/v1/effects/" + x.ID} {
		w.refused(w.do("other/ops", "GET", path, ""), holdpoint.CodeNotFound)
		require.Equal(t, http.StatusOK, w.do("ops", "GET", path, "").StatusCode, path)
	}
	for path, body := range map[string]string{
		"/v1/runs/" + d.Run.ID + "/cancel":                     `{"reason":"x"}`,
		"/v1/runs/" + d.Run.ID + "/replace":                    `{"key":"N-1","payload":{"created_by":"x"},"reason":"x"}`,
		"/v1/approvals/" + d.Approval.ID + "/withdraw":         `{"reason":"x"}`,
		"/v1/effects/" + x.ID + "/cancel":                      `{"reason":"x"}`,
		"/v1/runs/" + d.Run.ID + "/steps/a/resolve":            `{"verdict":"done","reason":"x"}`,
		"/v1/effects/" + x.ID + "/resolve":                     `{"verdict":"abandon","reason":"x"}`,
		"/v1/approvals/" + d.Approval.ID + "/decisions":        `{"decision":"approve","digest":"` + d.Approval.Digest + `"}`,
		"/v1/policies/" + d.Run.PolicyHash + "/activate":       `{"expected_active":""}`,
		"/v1/runs/00000000-0000-0000-0000-000000000000/cancel": `{"reason":"x"}`,
	} {
		w.refused(w.do("other/ops", "POST", path, body), holdpoint.CodeNotFound)
	}
	w.refused(w.do("other/machine", "POST", "/v1/runs/"+d.Run.ID+"/claim", `{"execution_id":"e"}`), holdpoint.CodeNotFound)
	require.Empty(t, w.do("other/ops", "GET", "/v1/runs", "").json["runs"])
}

func TestRefusals(t *testing.T) {
	w := newWorld(t, Options{Limits: payload.Limits{MaxBytes: 4 << 10}})
	good := claimBody("ticket-reply", "F-1")
	for name, c := range map[string]struct {
		who, method, path, body string
		headers                 []string
		code                    holdpoint.Code
	}{
		"no token":             {"", "GET", "/v1/runs", "", nil, holdpoint.CodeUnauthenticated},
		"a wrong token":        {"", "GET", "/v1/runs", "", []string{"Authorization", "Bearer hp_" + strings.Repeat("A", 43)}, holdpoint.CodeUnauthenticated},
		"another scheme":       {"", "GET", "/v1/runs", "", []string{"Authorization", "Basic abc"}, holdpoint.CodeUnauthenticated},
		"a huge token":         {"", "GET", "/v1/runs", "", []string{"Authorization", "Bearer hp_" + strings.Repeat("A", 4000)}, holdpoint.CodeUnauthenticated},
		"a token in the query": {"", "GET", "/v1/runs?access_token=" + w.tokens["machine"], "", nil, holdpoint.CodeUnauthenticated},
		"missing scope":        {"reader", "POST", "/v1/claims", good, nil, holdpoint.CodeInsufficientScope},
		"missing role":         {"ana", "POST", "/v1/keys", `{"name":"n","scopes":["read"]}`, nil, holdpoint.CodeForbidden},
		"no call":              {"machine", "GET", "/v1/nothing", "", nil, holdpoint.CodeNotFound},
		"a later version's":    {"machine", "POST", "/v1/runs/x/proposals", `{}`, nil, holdpoint.CodeNotFound},
		"another method":       {"machine", "DELETE", "/v1/runs/x", "", nil, holdpoint.CodeNotFound},
		"unknown field":        {"machine", "POST", "/v1/claims", `{"workflow":"ticket-reply","keyy":"s3cret","payload":{}}`, nil, holdpoint.CodeInvalidRequest},
		"wrong type":           {"machine", "POST", "/v1/claims", `{"workflow":7}`, nil, holdpoint.CodeInvalidRequest},
		"no media type":        {"machine", "POST", "/v1/claims", good, []string{"Content-Type", "text/plain"}, holdpoint.CodeUnsupportedMedia},
		"too large":            {"machine", "POST", "/v1/claims", claimBody("ticket-reply", strings.Repeat("x", 5000)), nil, holdpoint.CodeTooLarge},
		"too deep":             {"machine", "POST", "/v1/claims", `{"workflow":"ticket-reply","key":"d","payload":` + strings.Repeat("[", 101) + strings.Repeat("]", 101) + `}`, nil, holdpoint.CodeTooDeep},
		"duplicate member":     {"machine", "POST", "/v1/claims", `{"workflow":"ticket-reply","key":"d","payload":{"a":1,"a":2}}`, nil, holdpoint.CodeInvalidJSON},
		"unknown workflow":     {"machine", "POST", "/v1/claims", claimBody("none", "F-1"), nil, holdpoint.CodeUnknownWorkflow},
		"no initiator":         {"machine", "POST", "/v1/claims", `{"workflow":"ticket-reply","key":"F-9","payload":{}}`, nil, holdpoint.CodeInitiatorMissing},
		"a weak body":          {"machine", "POST", "/v1/claims", `"s3cret"`, nil, holdpoint.CodeInvalidRequest},
		"no body":              {"machine", "POST", "/v1/claims", "", []string{"Content-Type", "application/json"}, holdpoint.CodeInvalidJSON},
		"unknown parameter":    {"machine", "GET", "/v1/runs?stat=s3cret", "", nil, holdpoint.CodeInvalidRequest},
		"parameter twice":      {"machine", "GET", "/v1/runs?key=a&key=b", "", nil, holdpoint.CodeInvalidRequest},
		"unknown state":        {"machine", "GET", "/v1/runs?state=s3cret", "", nil, holdpoint.CodeInvalidRequest},
		"a made-up cursor":     {"machine", "GET", "/v1/runs?cursor=xx", "", nil, holdpoint.CodeInvalidRequest},
		"another spelling":     {"machine", "GET", "/v1/effects?cursor=0198C1F0-6C1E-7D3A-9F0E-2F6F0A3C5B11", "", nil, holdpoint.CodeInvalidRequest},
		"odd limit":            {"machine", "GET", "/v1/runs?limit=501", "", nil, holdpoint.CodeInvalidRequest},
		"broken query":         {"machine", "GET", "/v1/runs?key=%zz", "", nil, holdpoint.CodeInvalidRequest},
		"NUL in the query":     {"machine", "GET", "/v1/runs?key=%00", "", nil, holdpoint.CodeInvalidRequest},
		"NUL in the path":      {"machine", "GET", "/v1/runs/%00", "", nil, holdpoint.CodeNotFound},
		"not text in the path": {"machine", "GET", "/v1/runs/%ff", "", nil, holdpoint.CodeNotFound},
		"an endless name":      {"machine", "GET", "/v1/runs/" + strings.Repeat("a", 300), "", nil, holdpoint.CodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.do(c.who, c.method, c.path, c.body, c.headers...)
			w.refused(r, c.code)
			require.Equal(t, c.code == holdpoint.CodeUnauthenticated, r.Header.Get("WWW-Authenticate") != "")
		})
	}
	require.Equal(t, "GET", w.do("machine", "DELETE", "/v1/runs/x", "").Header.Get("Allow"))
	require.Contains(t, w.do("machine", "POST", "/v1/claims", `{"keyy":1}`).json["detail"], "keyy")
	require.Contains(t, w.do("reader", "POST", "/v1/claims", good).json["right"], "scope work")
	require.Equal(t, "mine", w.do("machine", "GET", "/v1/runs", "", "X-Request-Id", "mine").Header.Get("X-Request-Id"))
}

func TestOnlyBearerTokensAuthenticate(t *testing.T) {
	w := newWorld(t, Options{})
	_, err := w.engine.AddPerson(t.Context(), engine.Local("default", "test"), "ida@acme.example", "correct horse battery")
	require.NoError(t, err)
	session, _, err := w.engine.Login(t.Context(), "default", "ida@acme.example", "correct horse battery", "127.0.0.1")
	require.NoError(t, err)
	w.refused(w.do("", "GET", "/v1/me", "", "Cookie", "holdpoint="+session+"; __Host-holdpoint="+session), holdpoint.CodeUnauthenticated)
	w.refused(w.do("", "GET", "/v1/me", "", "Authorization", "Bearer "+session), holdpoint.CodeUnauthenticated)
	require.Equal(t, http.StatusOK, w.do("", "GET", "/v1/me", "", "Authorization", "bearer "+w.tokens["ops"]).StatusCode)
}

func TestGetAndHeadChangeNothing(t *testing.T) {
	w := newWorld(t, Options{})
	d := w.held("ticket-reply", "G-1")
	x := w.approved("ticket-reply", "G-2").Effects[0]
	state := func() string {
		run, err := w.engine.Run(t.Context(), holdpoint.Actor{Kind: holdpoint.ActorMachine, ID: "x", Tenant: "default", Scopes: []holdpoint.Scope{holdpoint.ScopeRead}}, d.Run.ID)
		require.NoError(t, err)
		run.Now = time.Time{}
		b, err := json.Marshal(run)
		require.NoError(t, err)
		return string(b)
	}
	before := state()
	for _, rt := range routes() {
		method, path, _ := strings.Cut(rt.pattern, " ")
		if method != http.MethodGet {
			continue
		}
		id := map[string]string{"runs": d.Run.ID, "approvals": d.Approval.ID, "effects": x.ID}[tag(path)]
		path = strings.NewReplacer("{id}", id, "{hash}", d.Run.PolicyHash).Replace(path)
		for _, m := range []string{http.MethodGet, http.MethodHead} {
			r := w.do("ops", m, path, "")
			require.Equal(t, http.StatusOK, r.StatusCode, "%s %s: %s", m, path, r.text)
			require.Equal(t, m == http.MethodHead, r.text == "")
		}
	}
	require.Equal(t, before, state())
}

func TestRateLimits(t *testing.T) {
	w := newWorld(t, Options{Limiter: httpserver.NewLimiter(0.001, 2)})
	for range 2 {
		require.Equal(t, http.StatusOK, w.do("machine", "GET", "/v1/me", "").StatusCode)
	}
	r := w.do("machine", "GET", "/v1/me", "")
	w.refused(r, holdpoint.CodeRateLimited)
	require.NotEmpty(t, r.Header.Get("Retry-After"))
	require.Positive(t, r.json["retry_after"])
	_, err := w.machine.Me(t.Context())
	require.Positive(t, client.RetryAfter(err))
	require.Equal(t, http.StatusOK, w.do("reader", "GET", "/v1/me", "").StatusCode, "another key has an allowance of its own")
	w.refused(w.do("", "GET", "/v1/me", ""), holdpoint.CodeUnauthenticated)
	require.Equal(t, http.StatusOK, w.do("", "GET", "/healthz", "").StatusCode)
	w.refused(w.do("", "GET", "/v1/me", ""), holdpoint.CodeRateLimited)
}

func TestSystemCalls(t *testing.T) {
	w := newWorld(t, Options{})
	require.Equal(t, "ok", w.do("", "GET", "/healthz", "").json["status"])
	require.Equal(t, "ready", w.do("", "GET", "/readyz", "").json["status"])
	require.NoError(t, w.machine.Ready(t.Context()))
	doc := w.do("", "GET", "/openapi.json", "")
	require.Equal(t, "application/json", doc.Header.Get("Content-Type"))
	require.JSONEq(t, string(document), doc.text)
}

func TestReadinessTellsStrangersNothing(t *testing.T) {
	w := newWorld(t, Options{})
	active, err := w.ops.Policy(t.Context(), "active")
	require.NoError(t, err)
	next := strings.Replace(active.Document, "kind: http\n", "kind: http\n    headers: {Authorization: \"Bearer ${env:CRM_TOKEN}\"}\n", 1)
	stored, err := w.ops.PutPolicy(t.Context(), next, active.Files)
	require.NoError(t, err)
	require.NoError(t, w.ops.ActivatePolicy(t.Context(), stored.Hash, active.Hash))
	r := w.do("", "GET", "/readyz", "")
	w.refused(r, holdpoint.CodeUnavailable)
	require.NotContains(t, r.text, "CRM_TOKEN")
	require.Contains(t, w.logged(), "CRM_TOKEN")
	w.says(w.machine.Ready(t.Context()), holdpoint.CodeUnavailable)
}

func TestAStoreThatIsGoneIsUnavailable(t *testing.T) {
	w := newWorld(t, Options{})
	require.NoError(t, w.store.Close())
	r := w.do("machine", "POST", "/v1/claims", claimBody("ticket-reply", "U-1"))
	w.refused(r, holdpoint.CodeUnavailable)
	require.NotEmpty(t, r.Header.Get("Retry-After"))
	require.Contains(t, w.logged(), "call failed")
	w.refused(w.do("", "GET", "/readyz", ""), holdpoint.CodeUnavailable)
	require.Equal(t, http.StatusOK, w.do("", "GET", "/healthz", "").StatusCode)
}

func FuzzSplitBatch(f *testing.F) {
	for _, s := range []string{`{"claims":[{"key":"a"},7,[]]}`, `{"claims":[]}`, `{"claims":[1],"claims":[2]}`, `{"claims":[1]}{}`, ` { "claims" : [ null ] } `} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		claims, err := splitBatch([]byte(body))
		if err != nil {
			require.Less(t, httpserver.NewProblem(err, "").Status, http.StatusInternalServerError)
			return
		}
		require.NotEmpty(t, claims)
		require.LessOrEqual(t, len(claims), maxBatchClaims)
		again, err := json.Marshal(map[string]any{"claims": claims})
		require.NoError(t, err)
		require.JSONEq(t, body, string(again))
	})
}
