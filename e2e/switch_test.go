//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

// ticks waits until the loops of the servers have gone round: the sweeper has noticed that a lease of one second ran out,
// which takes it at least one poll after the call.
func (s *server) ticks(key string) {
	s.w.t.Helper()
	lease := holdpoint.Duration(time.Second)
	c, err := s.machine.Claim(s.w.t.Context(), client.ClaimRequest{Workflow: "note", Key: key, Payload: event(key), Lease: &lease})
	require.NoError(s.w.t, err)
	require.Equal(s.w.t, holdpoint.Claimed, c.Outcome)
	eventually(s.w.t, soon, "the sweeper has noticed a lease that ran out", func() bool {
		for _, e := range s.evidence(c.Run.ID) {
			if e.Type == "run.claimable" {
				return true
			}
		}
		return false
	})
}

// nothingLeft holds that an effect waits under the switch, and that neither an attempt nor a request was made.
func (s *server) nothingLeft(runID string) {
	s.w.t.Helper()
	x := s.effect(runID)
	require.Equal(s.w.t, holdpoint.EffectPending, x.State)
	require.Equal(s.w.t, holdpoint.HoldSwitch, x.Hold)
	require.Zero(s.w.t, x.Attempts)
	require.Empty(s.w.t, x.AttemptLog)
	require.Zero(s.w.t, s.w.arrived(x))
	require.NotContains(s.w.t, types(s.evidence(runID)), "attempt.begun")
}

// TestSwitchedOff approves while the switch is off, in each scope that stops everything: nothing leaves; switched on,
// the effect leaves once.
func TestSwitchedOff(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		w := newWorld(t, p, governed)
		s := w.serve(serving{})
		for n, off := range [][]string{{"global", "tenant"}, {"global"}, {"tenant"}} { // the first as a fresh store has it
			if n > 0 {
				s.turn(false, off...)
			}
			key := "ticket-off-" + strings.Join(off, "-")
			runID := s.released("ticket", key)
			s.ticks("tick-" + key)
			s.nothingLeft(runID)
			s.turn(true, off...)
			require.Equal(t, 1, w.arrived(s.awaitEffect(runID, soon, holdpoint.EffectCompleted)))
			require.Equal(t, holdpoint.RunCompleted, s.run(runID).State)
		}
		require.Len(t, w.provider.Writes(), 3)
	}, sqlite, postgres)
}

// TestNarrowSwitch turns one workflow, one connector and one type off: what they cover stays, and everything else goes on.
func TestNarrowSwitch(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		w := newWorld(t, p, governed)
		s := w.serve(serving{})
		s.switchOn()
		for _, scope := range []string{"workflow:ticket", "connector:mail", "type:email.reply"} {
			s.turn(false, scope)
			runID := s.released("ticket", "ticket-"+strings.ReplaceAll(scope, ":", "-"))
			// Released later, sent sooner: the dispatcher has been there.
			s.awaitEffect(s.released("note", "note-"+strings.ReplaceAll(scope, ":", "-")), soon, holdpoint.EffectCompleted)
			s.nothingLeft(runID)
			s.turn(true, scope)
			require.Equal(t, 1, w.arrived(s.awaitEffect(runID, soon, holdpoint.EffectCompleted)))
		}
		require.Equal(t, 3, w.provider.CountPath("/mail"))
		require.Equal(t, 3, w.provider.CountPath("/crm"))
	}, sqlite, postgres)
}

// TestActionsNotEnabled runs a server whose environment does not say exactly true: the switches do not matter then.
func TestActionsNotEnabled(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		w := newWorld(t, p, governed)
		s := w.serve(serving{actions: "-"})
		s.switchOn()
		runID := s.released("ticket", "ticket-1")
		s.ticks("tick-unset")
		require.Zero(t, s.effect(runID).Attempts)
		s.stop()

		s = w.serve(serving{actions: "TRUE"})
		state, err := s.otto.Switches(t.Context())
		require.NoError(t, err)
		require.False(t, state.Enabled)
		s.ticks("tick-wrong")
		x := s.effect(runID)
		require.Zero(t, x.Attempts)
		require.Equal(t, holdpoint.EffectPending, x.State)
		require.Empty(t, w.provider.Writes())
		s.stop()

		s = w.serve(serving{})
		require.Equal(t, 1, w.arrived(s.awaitEffect(runID, soon, holdpoint.EffectCompleted)))
	}, sqlite)
}

// TestLostRight takes the right to decide away from the person whose decision waits behind the switch. What that decision
// released is held, and stays held when the switch goes on.
func TestLostRight(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		w := newWorld(t, p, governed)
		s := w.serve(serving{})

		policyRun := s.released("ticket", "ticket-policy") // Ana has the role by policy
		require.NoError(t, s.otto.GrantRole(t.Context(), ben, "lead"))
		grantRun, a := s.asked("ticket", "ticket-grant")
		s.approve(s.ben, a)
		require.NoError(t, s.otto.RevokeRole(t.Context(), ben, "lead"))
		const cleo = "cleo@acme.example"
		_, err := s.otto.AddUser(t.Context(), cleo, "")
		require.NoError(t, err)
		require.NoError(t, s.otto.GrantRole(t.Context(), cleo, "lead"))
		disabledRun, a := s.asked("ticket", "ticket-disabled")
		s.approve(client.New(s.url, w.token(cleo, "decide")), a)
		require.NoError(t, s.otto.DisableUser(t.Context(), cleo))
		// The policy that takes Ana's role leaves the connectors as they were approved.
		w.activate(strings.Replace(governed, "lead: {users: ["+ana+"]}", "lead: {users: ["+otto+"]}", 1))
		eventually(t, soon, "the new policy holds", func() bool {
			me, err := s.ana.Me(t.Context())
			return err == nil && len(me.Roles) == 0
		})

		s.switchOn()
		for _, runID := range []string{policyRun, grantRun, disabledRun} {
			eventually(t, soon, "the effect is held", func() bool { return s.effect(runID).Hold == holdpoint.HoldAuthority })
		}
		// Somebody who has the right releases something, and it goes: the dispatcher has been there.
		runID, a := s.asked("ticket", "ticket-fine")
		decider := client.New(s.url, w.token(otto, "decide"))
		s.approve(decider, a)
		require.Equal(t, 1, w.arrived(s.awaitEffect(runID, soon, holdpoint.EffectCompleted)))
		for _, held := range []string{policyRun, grantRun, disabledRun} {
			x := s.effect(held)
			require.Equal(t, holdpoint.EffectPending, x.State)
			require.Equal(t, holdpoint.HoldAuthority, x.Hold)
			require.Zero(t, x.Attempts)
			require.Zero(t, w.arrived(x))
		}
		require.Len(t, w.provider.Writes(), 1)
	}, sqlite, postgres)
}
