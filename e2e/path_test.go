//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/connector/mirror"
)

var model = holdpoint.Model{EndpointClass: "local", Name: "any", Revision: "1", FinishReason: "stop", PromptVersion: "3"}

// event is a business event as one delivery brings it: what is volatile differs each time.
func event(id string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"id": %q, "subject": "Where is my parcel?", "customer": %q, "delivered_at": %q}`,
		id, jane, time.Now().Format(time.RFC3339Nano)))
}

// claim claims an event that nobody has claimed.
func (s *server) claim(workflow, key string) client.Claim {
	s.w.t.Helper()
	c, err := s.machine.Claim(s.w.t.Context(), client.ClaimRequest{Workflow: workflow, Key: key, Payload: event(key)})
	require.NoError(s.w.t, err)
	require.Equal(s.w.t, holdpoint.Claimed, c.Outcome)
	require.NotNil(s.w.t, c.Lease)
	return c
}

// draft hands a reply in for a claimed run; the gate holds it.
func (s *server) draft(c client.Claim, reply string) client.Approval {
	s.w.t.Helper()
	output, err := json.Marshal(map[string]string{"reply": reply})
	require.NoError(s.w.t, err)
	d, err := s.machine.SubmitDraft(s.w.t.Context(), c.Run.ID, client.DraftRequest{Work: client.Work{Owner: c.Lease.Owner, Version: c.Lease.Version},
		Output: output, Model: model})
	require.NoError(s.w.t, err)
	require.Equal(s.w.t, "held", d.Outcome)
	require.NotNil(s.w.t, d.Approval)
	return *d.Approval
}

// asked brings an event to the gate.
func (s *server) asked(workflow, key string) (runID string, a client.Approval) {
	s.w.t.Helper()
	c := s.claim(workflow, key)
	return c.Run.ID, s.draft(c, "The reply to "+key)
}

// approve decides as a person.
func (s *server) approve(as *client.Client, a client.Approval) client.Decided {
	s.w.t.Helper()
	d, err := as.Decide(s.w.t.Context(), a.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: a.Digest})
	require.NoError(s.w.t, err)
	require.Equal(s.w.t, holdpoint.ApprovalApproved, d.Approval.State)
	return d
}

// released brings an event through the gate: its effect may be sent.
func (s *server) released(workflow, key string) (runID string) {
	s.w.t.Helper()
	runID, a := s.asked(workflow, key)
	s.approve(s.ana, a)
	return runID
}

func (s *server) run(id string) client.Run {
	s.w.t.Helper()
	r, err := s.otto.Run(s.w.t.Context(), id)
	require.NoError(s.w.t, err)
	return r
}

// effect gives the one effect of a run.
func (s *server) effect(runID string) client.Effect {
	s.w.t.Helper()
	effects := s.run(runID).Effects
	require.Len(s.w.t, effects, 1)
	return effects[0]
}

// awaitRun waits until a run is in a state.
func (s *server) awaitRun(id string, limit time.Duration, state holdpoint.RunState) client.Run {
	s.w.t.Helper()
	var r client.Run
	eventually(s.w.t, limit, "the run is "+string(state), func() bool { r = s.run(id); return r.State == state })
	return r
}

// awaitEffect waits until the one effect of a run is in a state.
func (s *server) awaitEffect(runID string, limit time.Duration, state holdpoint.EffectState) client.Effect {
	s.w.t.Helper()
	var x client.Effect
	eventually(s.w.t, limit, "the effect is "+string(state), func() bool { x = s.effect(runID); return !x.Planned && x.State == state })
	return x
}

// turn flips switches.
func (s *server) turn(on bool, scopes ...string) {
	s.w.t.Helper()
	for _, scope := range scopes {
		f, err := s.otto.SetSwitch(s.w.t.Context(), scope, on, "a test")
		require.NoError(s.w.t, err)
		require.Equal(s.w.t, on, f.On)
	}
}

// switchOn lets effects go.
func (s *server) switchOn() { s.w.t.Helper(); s.turn(true, "global", "tenant") }

// evidence gives a run's events and holds that their numbers have no gap.
func (s *server) evidence(runID string) []holdpoint.Event {
	s.w.t.Helper()
	events, err := s.otto.Evidence(s.w.t.Context(), runID)
	require.NoError(s.w.t, err)
	require.NotEmpty(s.w.t, events)
	for i, e := range events {
		require.Equal(s.w.t, int64(i+1), e.Seq, "event %s", e.Type)
		require.Equal(s.w.t, runID, e.RunID)
	}
	return events
}

// types lists the types of events in order.
func types(events []holdpoint.Event) []string {
	all := make([]string, len(events))
	for i, e := range events {
		all[i] = e.Type
	}
	return all
}

// arrived counts the requests of an effect that reached the provider.
func (w *world) arrived(x client.Effect) int { return w.provider.CountReference(x.Reference) }

// TestGoverned walks one event from its delivery to its evidence, and back to the sender that delivers it again.
func TestGoverned(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		w := newWorld(t, p, governed)
		s := w.serve(serving{})
		s.switchOn()

		c := s.claim("ticket", "ticket-1")
		again, err := s.machine.Claim(t.Context(), client.ClaimRequest{Workflow: "ticket", Key: "ticket-1", Payload: event("ticket-1")})
		require.NoError(t, err)
		require.Equal(t, holdpoint.Busy, again.Outcome)
		require.Positive(t, again.RetryAfter)

		bad, err := s.machine.SubmitDraft(t.Context(), c.Run.ID, client.DraftRequest{Work: client.Work{Owner: c.Lease.Owner, Version: c.Lease.Version},
			Output: json.RawMessage(`"Sure! Here is your JSON: {\"reply\": \"Hi\"}"`), Model: model})
		require.NoError(t, err)
		require.Equal(t, "repair", bad.Outcome)
		require.NotEmpty(t, bad.RepairPrompt)
		require.NotEmpty(t, bad.Errors)
		require.Equal(t, 1, *bad.RepairsLeft)

		a := s.draft(c, "It arrives tomorrow.")
		again, err = s.machine.Claim(t.Context(), client.ClaimRequest{Workflow: "ticket", Key: "ticket-1", Payload: event("ticket-1")})
		require.NoError(t, err)
		require.Equal(t, holdpoint.Duplicate, again.Outcome)
		require.Equal(t, holdpoint.RunAwaitingHuman, again.Run.State)

		card, err := s.ana.Approval(t.Context(), a.ID)
		require.NoError(t, err)
		require.True(t, card.MayDecide)
		require.Equal(t, "Send 1 e-mail to "+jane, card.Sentence)
		require.Equal(t, a.Digest, card.Approval.Digest)
		require.Empty(t, w.provider.Writes(), "nothing leaves before a person has decided")

		_, err = s.machine.Decide(t.Context(), a.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: a.Digest})
		require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeForbidden}, "a machine decides nothing")
		_, err = s.ben.Decide(t.Context(), a.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: a.Digest})
		require.Error(t, err, "a person without the role decides nothing")
		s.approve(s.ana, a)

		r := s.awaitRun(c.Run.ID, soon, holdpoint.RunCompleted)
		require.Len(t, r.Effects, 1)
		require.Equal(t, 1, w.arrived(r.Effects[0]))
		require.Len(t, w.provider.Writes(), 1)
		require.Equal(t, w.provider.Writes()[0].ID, r.Effects[0].ProviderID)
		require.Equal(t, "yes", r.Answers.Sent)
		require.Equal(t, ana, r.Answers.ApprovedBy)
		require.Empty(t, r.Answers.Uncertain)

		_, err = s.ana.Decide(t.Context(), a.ID, client.DecisionRequest{Decision: holdpoint.DecisionReject, Digest: a.Digest, Reason: "too late"})
		require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeAlreadyDecided})
		again, err = s.machine.Claim(t.Context(), client.ClaimRequest{Workflow: "ticket", Key: "ticket-1", Payload: event("ticket-1")})
		require.NoError(t, err)
		require.Equal(t, holdpoint.Duplicate, again.Outcome)
		require.Equal(t, holdpoint.RunCompleted, again.Run.State)

		said := types(s.evidence(c.Run.ID))
		for _, one := range []string{"run.claimed", "draft.accepted", "approval.created", "decision.recorded", "effect.queued", "attempt.begun",
			"attempt.settled", "run.completed", "run.duplicate"} {
			require.Contains(t, said, one)
		}
		s.stop()
	}, sqlite, postgres, pooled)
}

// TestTwoServers splits one instance into a server that people and workflows speak to and one that sends, on one
// PostgreSQL: what is decided at the one is sent by the other, at once; a policy activated at the one holds at the other.
func TestTwoServers(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		w := newWorld(t, p, governed)
		front := w.serve(serving{roles: "api"})
		back := w.serve(serving{roles: "dispatch"})
		require.Empty(t, back.url, "a server without the role api does not listen")
		front.switchOn()

		for n := range 5 {
			runID, a := front.asked("ticket", fmt.Sprintf("ticket-%d", n))
			front.approve(front.ana, a)
			decided := time.Now()
			x := front.awaitEffect(runID, soon, holdpoint.EffectCompleted)
			require.Equal(t, 1, w.arrived(x))
			for _, one := range w.provider.Writes() {
				if one.Reference == x.Reference {
					t.Logf("from the answer to the decision to the provider: %s", one.At.Sub(decided).Round(time.Millisecond))
				}
			}
		}
		require.Len(t, w.provider.Writes(), 5)

		other := w.serve(serving{roles: "api"})
		w.activate(governed + `  fresh:
    contract: draft.json
    effects:
      reply: {type: email.reply, connector: mail, consequence: customer_message, target: "${event.customer}", payload: {text: "${draft.reply}"}}
    gate: {roles: [lead]}
`)
		for name, s := range map[string]*server{"front": front, "other": other} {
			eventually(t, soon, "the new policy holds at "+name, func() bool {
				c, err := s.machine.Claim(t.Context(), client.ClaimRequest{Workflow: "fresh", Key: "fresh-" + name, Payload: event("x")})
				return err == nil && c.Outcome == holdpoint.Claimed
			})
		}
		runID := other.released("fresh", "fresh-sent")
		require.Equal(t, 1, w.arrived(front.awaitEffect(runID, soon, holdpoint.EffectCompleted)))

		// What a server was doing when it is told to stop is finished and recorded.
		w.provider.Queue("/mail", mirror.LateAnswer(1500*time.Millisecond, "late-1"))
		runID = front.released("ticket", "ticket-stop")
		eventually(t, soon, "the provider holds the request", func() bool { return w.arrived(front.effect(runID)) == 1 })
		back.stop()
		require.Equal(t, "late-1", front.awaitEffect(runID, soon, holdpoint.EffectCompleted).ProviderID)
		require.Equal(t, 1, w.arrived(front.effect(runID)))
	}, postgres, pooled)
}
