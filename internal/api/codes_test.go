package api

import (
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// call finds a route by its operationId and makes a call of it.
func (w *world) call(id string, x example) reply {
	w.Helper()
	for _, rt := range routes() {
		if rt.id == id {
			return w.do(x.who, method(rt), x.path, x.body)
		}
	}
	require.Fail(w, "no operation "+id)
	return reply{}
}

// TestWorkUnderALostLease makes each work call with a lease of another version, of another execution and on a run that
// has gone on.
func TestWorkUnderALostLease(t *testing.T) {
	w := newWorld(t, Options{})
	ctx := t.Context()
	calls := map[string]string{"renewLease": "/renew", "beginStep": "/steps/a/begin", "finishStep": "/steps/a/finish", "submitDraft": "/draft",
		"failRun": "/fail", "completeRun": "/complete"}
	rest := map[string]string{"finishStep": `,"result":1`, "submitDraft": `,"output":{"reply":"other"}`, "failRun": `,"class":"model_timeout"`}
	try := func(id, run, owner string, version int64, execution string) reply {
		return w.call(id, example{"machine", "/v1/runs/" + run + calls[id],
			fmt.Sprintf(`{"owner":%q,"version":%d,"execution_id":%q%s}`, owner, version, execution, rest[id])})
	}
	for id := range calls {
		a, err := w.machine.Claim(ctx, client.ClaimRequest{Workflow: "ticket-reply", Key: "L-" + id, Payload: []byte(event), Trigger: &client.Trigger{Source: "n8n", ExecutionID: "e-1"}})
		require.NoError(t, err)
		owner, version := a.Lease.Owner, a.Lease.Version
		if id == "finishStep" {
			_, err := w.machine.BeginStep(ctx, a.Run.ID, "a", client.StepRequest{Work: client.Work{Owner: owner, Version: version, ExecutionID: "e-1"}})
			require.NoError(t, err)
		}
		w.refused(try(id, a.Run.ID, owner, version+1, "e-1"), holdpoint.CodeLeaseLost)
		w.refused(try(id, a.Run.ID, uuid.NewString(), version, "e-1"), holdpoint.CodeLeaseLost)
		w.refused(try(id, a.Run.ID, owner, version, "e-2"), holdpoint.CodeLeaseOtherExecution)
		_, err = w.machine.SubmitDraft(ctx, a.Run.ID, client.DraftRequest{Work: client.Work{Owner: owner, Version: version, ExecutionID: "e-1"}, Output: []byte(`{"reply":"held"}`)})
		require.NoError(t, err)
		w.refused(try(id, a.Run.ID, owner, version, "e-1"), holdpoint.CodeLeaseLost)
	}
}

// TestStepsThatAreOver meets what the state of a step does not permit.
func TestStepsThatAreOver(t *testing.T) {
	w := newWorld(t, Options{})
	ctx := t.Context()
	a, work := w.claimed("ticket-reply", "S-1")
	_, err := w.machine.BeginStep(ctx, a.Run.ID, "a", client.StepRequest{Work: work, InputHash: "1"})
	require.NoError(t, err)
	_, err = w.machine.FinishStep(ctx, a.Run.ID, "a", client.StepEnd{Work: work, Result: []byte(`1`)})
	require.NoError(t, err)
	_, err = w.machine.FinishStep(ctx, a.Run.ID, "a", client.StepEnd{Work: work, Result: []byte(`2`)})
	w.says(err, holdpoint.CodeNotAllowedNow)
	_, err = w.machine.BeginStep(ctx, a.Run.ID, "a", client.StepRequest{Work: work, InputHash: "2"})
	w.says(err, holdpoint.CodeNotAllowedNow)
	_, err = w.machine.FinishStep(ctx, a.Run.ID, "b", client.StepEnd{Work: work, Result: []byte(`1`)})
	w.says(err, holdpoint.CodeNotFound)
}

// TestRulesThatAreGone makes the calls that need a policy where the active one lacks the workflow, where the stored
// document is not valid any more, and where there is none.
func TestRulesThatAreGone(t *testing.T) {
	w := newWorld(t, Options{})
	ctx := t.Context()
	examples := w.examples()
	own := []string{"renewLease", "submitDraft", "failRun", "getApproval", "decide"} // judged under the policy that the run was claimed with
	active := []string{"claim", "claimRun", "replaceRun"}
	connectors := []string{"reconcileEffect", "listConnectors", "releaseConnector"}
	lacking, broken := map[string]example{}, map[string]example{}
	for _, id := range slices.Concat(own, active, connectors) {
		lacking[id], broken[id] = examples[id](), examples[id]()
	}
	for _, role := range []string{"operator", "support-lead"} { // what an invalid policy gives counts for nobody
		require.NoError(t, w.ops.GrantRole(ctx, "ops@acme.example", role))
	}
	policy, err := w.ops.Policy(ctx, "active")
	require.NoError(t, err)
	other, err := w.ops.PutPolicy(ctx, strings.Replace(policy.Document, "  ticket-reply:", "  ticket-answer:", 1), policy.Files)
	require.NoError(t, err)
	require.NoError(t, w.ops.ActivatePolicy(ctx, other.Hash, policy.Hash))
	for _, id := range active {
		w.refused(w.call(id, lacking[id]), holdpoint.CodeUnknownWorkflow)
	}
	for _, id := range slices.Concat(own, connectors) {
		require.Equal(t, http.StatusOK, w.call(id, lacking[id]).StatusCode, id)
	}

	db, err := sql.Open("sqlite", w.file)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	_, err = db.ExecContext(ctx, "UPDATE policies SET document = 'version: 9'")
	require.NoError(t, err)
	w.restart()
	for _, id := range slices.Concat(own, active, connectors) {
		x := broken[id]
		if x.who == "ana" {
			x.who = "ops"
		}
		w.refused(w.call(id, x), holdpoint.CodeInvalidPolicy)
	}

	w.bare()
	for _, id := range []string{"claim", "listConnectors", "releaseConnector", "getPolicy"} {
		x := examples[id]()
		x.who = "bare/" + x.who
		w.refused(w.call(id, x), holdpoint.CodeNoPolicy)
	}
	for _, role := range []string{"tenant-admin", "policy-owner"} {
		w.refused(w.do("bare/ops", "DELETE", "/v1/users/ida@acme.example/grants/"+role, ""), holdpoint.CodeNotAllowedNow)
	}
}

// bare makes a tenant without a policy, with one person and one machine.
func (w *world) bare() {
	w.Helper()
	ctx, local, email := w.Context(), engine.Local("bare", "test"), "ida@acme.example"
	require.NoError(w, w.engine.CreateTenant(ctx, local, "bare"))
	w.personOf("bare", email)
	for _, role := range []string{"operator", "policy-owner", "tenant-admin"} {
		require.NoError(w, w.engine.Grant(ctx, local, email, role))
	}
	token, err := w.engine.CreateToken(ctx, local, email, "test", holdpoint.PersonScopes)
	require.NoError(w, err)
	key, err := w.engine.CreateKey(ctx, local, "machine", holdpoint.MachineScopes)
	require.NoError(w, err)
	w.tokens["bare/ops"], w.tokens["bare/machine"] = token.Key, key.Key
}

// TestRefusedMoves meets what the state of a run, an approval, a connector or an account does not permit.
func TestRefusedMoves(t *testing.T) {
	w := newWorld(t, Options{})
	ctx := t.Context()
	d := w.approved("ticket-reply", "M-1")
	_, err := w.ops.Replace(ctx, d.Run.ID, client.ReplaceRequest{Key: "X-1", Payload: []byte(event), Reason: "corrected"})
	w.says(err, holdpoint.CodeNotAllowedNow)
	h := w.held("ticket-reply", "M-2")
	_, err = w.ops.Replace(ctx, h.Run.ID, client.ReplaceRequest{Key: "X-2", Payload: []byte(`{"customer":{"email":"jane@acme.example"}}`), Reason: "corrected"})
	w.says(err, holdpoint.CodeInitiatorMissing)
	w.claimed("ticket-reply", "X-3")
	_, err = w.ops.Replace(ctx, h.Run.ID, client.ReplaceRequest{Key: "X-3", Payload: []byte(`{"created_by":"bob@acme.example","another":1}`), Reason: "corrected"})
	w.says(err, holdpoint.CodeMismatch)
	_, err = w.ops.CancelEffect(ctx, d.Effects[0].ID, "no")
	require.NoError(t, err)
	_, err = w.ops.Withdraw(ctx, d.Approval.ID, "too late")
	w.says(err, holdpoint.CodeNotAllowedNow)
	q := w.held("ticket-reply", "M-3")
	w.ahead.Store(int64(100 * time.Hour))
	_, err = w.ana.Decide(ctx, q.Approval.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: q.Approval.Digest})
	w.says(err, holdpoint.CodeNotAllowedNow)
	w.ahead.Store(0)

	policy, err := w.ops.Policy(ctx, "active")
	require.NoError(t, err)
	orphan, err := w.ops.PutPolicy(ctx, strings.Replace(policy.Document, "tenant-admin: {users: [ops@", "tenant-admin: {users: [gone@", 1), policy.Files)
	require.NoError(t, err)
	w.says(w.ops.ActivatePolicy(ctx, orphan.Hash, policy.Hash), holdpoint.CodeInvalidPolicy)
	lacks, err := w.ops.PutPolicy(ctx, strings.Replace(policy.Document, "kind: http\n", "kind: http\n    headers: {Authorization: \"Bearer ${env:CRM_TOKEN}\"}\n", 1), policy.Files)
	require.NoError(t, err)
	require.NoError(t, w.ops.ActivatePolicy(ctx, lacks.Hash, policy.Hash))
	_, err = w.ops.ReleaseConnector(ctx, "crm")
	w.says(err, holdpoint.CodeNotAllowedNow)
}
