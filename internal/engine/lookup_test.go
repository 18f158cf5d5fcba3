package engine_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/store"
)

// leasing is a store whose look-ups are given.
type leasing struct {
	store.Store
	lookups []store.LeasedEffect
}

func (s leasing) LeaseLookups(context.Context, string, time.Duration, int) ([]store.LeasedEffect, error) {
	return s.lookups, nil
}

// One unknown effect that cannot be judged keeps no other from being looked up.
func TestALookUpThatFailsStarvesNoOther(t *testing.T) {
	w := newWorld(t)
	w.switchOn()
	c := w.claim("ticket-reply", "ticket-1")
	w.approve(w.draft(c, `{"reply":"Hello"}`))
	w.until(c.Run.ID, "completed", func(v engine.RunView) bool { return v.State == holdpoint.RunCompleted })
	rec, err := w.store.Record(w.ctx, "default", c.Run.ID)
	require.NoError(t, err)
	x := rec.Effects[0]
	tenant, err := w.store.TenantByName(w.ctx, "default")
	require.NoError(t, err)
	good := store.LeasedEffect{Effect: x.Effect, Target: x.Target, Payload: x.Payload, RunKey: rec.RunKey, Policy: tenant.ActivePolicy, Now: rec.Now}
	bad := good
	bad.RunKey = []byte("damaged")

	master, err := payload.NewMaster([]byte(strings.Repeat("k", 32)))
	require.NoError(t, err)
	e, err := engine.New(engine.Options{Store: leasing{w.store, []store.LeasedEffect{bad, good, bad}}, Master: master, PublicURL: "http://127.0.0.1:8470"})
	require.NoError(t, err)
	tasks, err := e.LeaseLookups(w.ctx, "me", time.Minute, 3)
	require.Error(t, err, "what failed is told")
	require.Len(t, tasks, 1)
	require.Equal(t, x.ID, tasks[0].ID)
}
