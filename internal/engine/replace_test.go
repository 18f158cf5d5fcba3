package engine_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
)

const correctedEvent = `{"customer":{"email":"jane@acme.example"},"created_by":"bob@acme.example","amount":2}`

// ended claims a key and ends its run, so that it can be corrected.
func (w *world) ended(workflow, key string) holdpoint.Run {
	w.Helper()
	c := w.claim(workflow, key)
	run, err := w.e.Complete(w.ctx, w.machine, c.Run.ID, engine.CompleteRequest{Work: engine.Work{Owner: c.Lease.Owner, Version: c.Lease.Version}})
	require.NoError(w, err)
	return run
}

// Whoever brings the payload of a correction is its author, whatever the payload says about who created it.
func TestAnOperatorDoesNotApproveACorrectionOfTheirOwn(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.e.Grant(w.ctx, engine.Local("default", "test"), "ana@acme.example", holdpoint.RoleOperator))
	w.ana = w.login("ana@acme.example")
	old := w.ended("ticket-reply", "ticket-1")
	r, err := w.e.Replace(w.ctx, w.ana, old.ID, engine.ReplaceRequest{Key: "case-77", Payload: json.RawMessage(correctedEvent), Reason: "wrong amount"})
	require.NoError(t, err)
	require.True(t, r.Created)
	c, err := w.e.ClaimRun(w.ctx, w.machine, r.Run.ID, engine.ClaimRunRequest{ExecutionID: "e1"})
	require.NoError(t, err)
	require.Equal(t, holdpoint.Claimed, c.Outcome)
	d, err := w.e.SubmitDraft(w.ctx, w.machine, r.Run.ID, engine.DraftRequest{
		Work: engine.Work{Owner: c.Lease.Owner, Version: c.Lease.Version, ExecutionID: "e1"}, Output: json.RawMessage(`{"reply":"Hello"}`)})
	require.NoError(t, err)

	card, err := w.e.Approval(w.ctx, w.ana, d.Approval.ID, "en")
	require.NoError(t, err)
	require.False(t, card.MayDecide)
	require.Empty(t, card.Eligible)
	_, err = w.e.Decide(w.ctx, w.ana, d.Approval.ID, engine.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: d.Approval.Digest})
	require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeForbidden})
}

// Linking a run that a delivery has made brings nothing new, so it makes nobody its author.
func TestAnOperatorMayApproveARunThatTheyOnlyLinked(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.e.Grant(w.ctx, engine.Local("default", "test"), "ana@acme.example", holdpoint.RoleOperator))
	w.ana = w.login("ana@acme.example")
	old := w.ended("ticket-reply", "ticket-1")
	c := w.claim("ticket-reply", "case-77")
	r, err := w.e.Replace(w.ctx, w.ana, old.ID, engine.ReplaceRequest{Key: "case-77", Payload: json.RawMessage(event), Reason: "sent again upstream"})
	require.NoError(t, err)
	require.False(t, r.Created)
	w.approve(w.draft(c, `{"reply":"Hello"}`))
}

// The key of an existing run that was fingerprinted under another rule stands for its payload all the same (R1.2).
func TestACorrectionIsHeldAgainstTheRuleOfTheRunThatItLinks(t *testing.T) {
	w := newWorld(t)
	old := w.ended("ticket-reply", "ticket-1")
	w.claim("ticket-reply", "case-77")
	w.activate(strings.Replace(w.policy(), "    repairs: 1\n", "    repairs: 1\n    fingerprint: {ignore: [/sent_at]}\n", 1))

	_, err := w.e.Replace(w.ctx, w.ops, old.ID, engine.ReplaceRequest{Key: "case-77", Payload: json.RawMessage(correctedEvent), Reason: "wrong amount"})
	require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeMismatch})
	v, err := w.e.Run(w.ctx, w.ops, old.ID)
	require.NoError(t, err)
	require.Empty(t, v.ReplacedBy)

	r, err := w.e.Replace(w.ctx, w.ops, old.ID, engine.ReplaceRequest{Key: "case-77", Payload: json.RawMessage(event), Reason: "sent again upstream"})
	require.NoError(t, err)
	require.False(t, r.Created)
	require.Equal(t, old.ID, r.Run.Replaces)
}
