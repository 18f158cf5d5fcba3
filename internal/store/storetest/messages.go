package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

func newMessage(tenant string) store.Message {
	return store.Message{Data: []byte("sealed"), MessageRecord: holdpoint.MessageRecord{ID: newID(), Tenant: tenant, Type: "run.failed", Channel: "pager", Email: "ana@acme.example"}}
}

func testMessages(t *testing.T, open func(t testing.TB, now func() time.Time) store.Store) {
	ctx := context.Background()
	lease := func(t testing.TB, s store.Store, owner string, limit int) []store.Message {
		t.Helper()
		got, err := s.LeaseMessages(ctx, owner, time.Minute, limit)
		require.NoError(t, err)
		return got
	}

	t.Run("a message is leased until it is delivered, then never again", func(t *testing.T) {
		f := newFixture(t, open)
		s := f.Store
		m := newMessage("acme")
		m.RunID, m.ApprovalID, m.ChallengeID = newID(), newID(), newID()
		require.NoError(t, s.AddMessages(ctx, []store.Message{m}))
		requireCode(t, holdpoint.CodeExists, s.AddMessages(ctx, []store.Message{newMessage("acme"), m}))
		require.NoError(t, s.AddMessages(ctx, nil))

		got := lease(t, s, "a", 10)
		m.State, m.Attempts, m.CreatedAt = "pending", 1, f.now()
		require.Equal(t, []store.Message{m}, got)
		require.Empty(t, lease(t, s, "b", 10), "leased by another")
		requireCode(t, holdpoint.CodeLeaseLost, s.SettleMessage(ctx, "b", m.ID, "acme", "delivered", "", 0))
		requireCode(t, holdpoint.CodeLeaseLost, s.SettleMessage(ctx, "a", m.ID, "other", "delivered", "", 0))
		requireCode(t, holdpoint.CodeInternal, s.SettleMessage(ctx, "a", m.ID, "acme", "sent", "", 0))

		require.NoError(t, s.SettleMessage(ctx, "a", m.ID, "acme", "pending", "503", 5*time.Minute))
		requireCode(t, holdpoint.CodeLeaseLost, s.SettleMessage(ctx, "a", m.ID, "acme", "delivered", "", 0))
		requireCode(t, holdpoint.CodeLeaseLost, s.SettleMessage(ctx, "", m.ID, "acme", "delivered", "", 0))
		f.advance(5*time.Minute - time.Microsecond)
		require.Empty(t, lease(t, s, "b", 10), "not due yet")
		f.advance(time.Microsecond)
		got = lease(t, s, "b", 10)
		require.Len(t, got, 1)
		require.Equal(t, 2, got[0].Attempts)
		require.Equal(t, "503", got[0].Detail)
		require.NoError(t, s.SettleMessage(ctx, "b", m.ID, "acme", "delivered", "", 0))
		f.advance(24 * time.Hour)
		require.Empty(t, lease(t, s, "a", 10))
	})

	t.Run("a lease that ran out is taken over, and then the first owner has lost it", func(t *testing.T) {
		f := newFixture(t, open)
		s := f.Store
		m, late := newMessage("acme"), newMessage("acme")
		require.NoError(t, s.AddMessages(ctx, []store.Message{m, late}))
		require.Len(t, lease(t, s, "a", 10), 2)
		f.advance(time.Minute - time.Microsecond)
		require.Empty(t, lease(t, s, "b", 10))
		f.advance(time.Microsecond)
		require.NoError(t, s.SettleMessage(ctx, "a", late.ID, "acme", "delivered", "", 0), "late, but nobody else has it")
		got := lease(t, s, "b", 10)
		require.Len(t, got, 1)
		require.Equal(t, m.ID, got[0].ID)
		requireCode(t, holdpoint.CodeLeaseLost, s.SettleMessage(ctx, "a", m.ID, "acme", "failed", "", 0))
		require.NoError(t, s.SettleMessage(ctx, "b", m.ID, "acme", "dropped", "channel gone", 0))
		f.advance(time.Hour)
		require.Empty(t, lease(t, s, "b", 10))
	})

	t.Run("scope messages stops the lane of one tenant only; missing is on", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		createTenant(t, s, "other")
		flip := func(scope string, on bool) {
			t.Helper()
			_, _, err := s.SetSwitch(ctx, store.SwitchChange{Tenant: "acme", Scope: scope, On: on, Who: admin})
			require.NoError(t, err)
		}
		mine, theirs := newMessage("acme"), newMessage("other")
		require.NoError(t, s.AddMessages(ctx, []store.Message{mine, theirs}))
		flip("messages", false)
		got := lease(t, s, "a", 10)
		require.Len(t, got, 1)
		require.Equal(t, theirs.ID, got[0].ID)
		flip("tenant", true)
		flip("global", true)
		require.Empty(t, lease(t, s, "a", 10), "the switches of effects do not concern messages")
		flip("messages", true)
		flip("tenant", false)
		got = lease(t, s, "a", 10)
		require.Len(t, got, 1)
		require.Equal(t, mine.ID, got[0].ID)
	})

	t.Run("simultaneous leasers get each message once", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		const n = 60
		messages := make([]store.Message, n)
		for i := range messages {
			messages[i] = newMessage("acme")
		}
		require.NoError(t, s.AddMessages(ctx, messages))
		var mu sync.Mutex
		owners := map[string]string{}
		errs := simultaneously(8, func(i int) error {
			owner := fmt.Sprint("owner", i)
			for range n { // bounded: an empty answer ends it
				got, err := s.LeaseMessages(ctx, owner, time.Hour, 5)
				if err != nil || len(got) == 0 {
					return err
				}
				mu.Lock()
				for _, m := range got {
					if before := owners[m.ID]; before != "" {
						err = fmt.Errorf("%s leased by %s and %s", m.ID, before, owner)
					}
					owners[m.ID] = owner
				}
				mu.Unlock()
				if err != nil {
					return err
				}
				if len(got) > 5 {
					return fmt.Errorf("%d messages against a limit of 5", len(got))
				}
			}
			return nil
		})
		for _, err := range errs {
			require.NoError(t, err)
		}
		require.Len(t, owners, n, "rows that another leaser held were left for later, and nothing was left at the end")
		for id, owner := range owners {
			require.NoError(t, s.SettleMessage(ctx, owner, id, "acme", "delivered", "", 0))
		}
	})
}
