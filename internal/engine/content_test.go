package engine_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// What a model calls its fields is its text: the caller is told, evidence keeps only what the contract spells out.
func TestEvidenceOfARejectedDraftRepeatsNothingOfTheModel(t *testing.T) {
	w := newWorld(t)
	c := w.claim("ticket-reply", "ticket-1")
	d := w.draft(c, `{"reply":1,"Jane Doe has diabetes":true,"4111111111111111":{"x":1}}`)
	require.Equal(t, "repair", d.Outcome)
	require.Len(t, d.Errors, 3)
	events, err := w.e.Evidence(w.ctx, w.machine, c.Run.ID)
	require.NoError(t, err)
	told, err := json.Marshal(events)
	require.NoError(t, err)
	for _, secret := range []string{"Jane", "diabetes", "4111"} {
		require.NotContains(t, string(told), secret)
	}
	require.Contains(t, string(told), "unknown_field /*")
	require.Contains(t, string(told), "type /reply")
}

// Evidence has no room for a text in place of a model's name.
func TestTheModelIsNamedShortly(t *testing.T) {
	w := newWorld(t)
	c := w.claim("ticket-reply", "ticket-1")
	long := strings.Repeat("x", 256)
	for _, m := range []holdpoint.Model{{EndpointClass: long}, {Name: long}, {Revision: long}, {FinishReason: long}, {PromptVersion: long}} {
		_, err := w.e.SubmitDraft(w.ctx, w.machine, c.Run.ID, engine.DraftRequest{Work: engine.Work{Owner: c.Lease.Owner, Version: c.Lease.Version},
			Output: json.RawMessage(`{"reply":"Hello"}`), Model: m})
		require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeInvalidRequest})
	}
}

// A key that works on runs of its own is noted like any other when it reads the content of another one's run.
func TestReadingTheContentOfAnotherOnesRunIsEvidence(t *testing.T) {
	w := newWorld(t)
	c := w.claim("ticket-reply", "ticket-1")
	key, err := w.e.CreateKey(w.ctx, engine.Local("default", "test"), "other", []holdpoint.Scope{holdpoint.ScopeWork, holdpoint.ScopeContent})
	require.NoError(t, err)
	other, err := w.e.Bearer(w.ctx, key.Key)
	require.NoError(t, err)
	reads := func() (by []string) {
		events, err := w.e.Evidence(w.ctx, w.machine, c.Run.ID)
		require.NoError(t, err)
		for _, ev := range events {
			if ev.Type == "content.read" {
				by = append(by, ev.Who.ID)
			}
		}
		return by
	}
	v, err := w.e.Run(w.ctx, w.machine, c.Run.ID)
	require.NoError(t, err)
	require.True(t, v.Content)
	require.Empty(t, reads(), "who works on the run has brought its content")
	v, err = w.e.Run(w.ctx, other, c.Run.ID)
	require.NoError(t, err)
	require.True(t, v.Content)
	require.Equal(t, []string{other.ID}, reads())
}
