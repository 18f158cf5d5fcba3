package storetest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// shown is an effect with the hold that stands: its own, else the switch, else that of its connector.
func (m *model) shown(e holdpoint.Effect) holdpoint.Effect {
	if e.State == holdpoint.EffectPending && e.Hold == "" {
		if e.Hold = m.stoppedBy(e); !m.switchedOn(e) {
			e.Hold = holdpoint.HoldSwitch
		}
	}
	return e
}

func (m *model) Record(_ context.Context, tenant, id string) (store.Record, error) {
	r, err := m.run(tenant, id)
	if err != nil {
		return store.Record{}, err
	}
	rec := r.clone().Record
	for i := range rec.Effects {
		rec.Effects[i].Effect = m.shown(rec.Effects[i].Effect)
	}
	slices.SortFunc(rec.Attempts, byBegin)
	slices.SortFunc(rec.Challenges, func(a, b holdpoint.Challenge) int { return strings.Compare(a.ID, b.ID) })
	for _, msg := range m.messages {
		if msg.Tenant == tenant && msg.RunID == id {
			rec.Messages = append(rec.Messages, msg.MessageRecord)
		}
	}
	slices.SortFunc(rec.Messages, func(a, b holdpoint.MessageRecord) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	rec.Now = m.clock()
	return rec, nil
}

func (m *model) Content(_ context.Context, tenant, id string) (store.Record, error) {
	r, err := m.run(tenant, id)
	if err != nil {
		return store.Record{}, err
	}
	return store.Record{Run: r.Run, RunKey: r.RunKey, Payload: r.Payload, Initiator: r.Initiator, ResumeURL: r.ResumeURL, Result: r.Result, FailText: r.FailText}, nil
}

// pageOf cuts one page out of all that a search finds, newest first.
func pageOf[T any](all []T, id func(T) string, cursor string, limit int) ([]T, string) {
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(id(b), id(a)) })
	all = slices.DeleteFunc(all, func(v T) bool { return cursor != "" && id(v) >= cursor })
	if limit <= 0 {
		limit = 50
	}
	if len(all) <= limit {
		return all, ""
	}
	return all[:limit], id(all[limit-1])
}

func (m *model) FindRuns(_ context.Context, f store.RunFilter) ([]holdpoint.Run, string, error) {
	var all []holdpoint.Run
	is := func(want, got string) bool { return want == "" || want == got }
	for _, r := range m.runs {
		record := ""
		if r.Run.Operation != nil {
			record = r.Run.Operation.Record
		}
		if r.Run.Tenant == f.Tenant && is(f.KeyHMAC, r.hmac) && is(f.Key, r.Run.Key) && is(f.Workflow, r.Run.Workflow) && is(f.Record, record) &&
			is(string(f.State), string(r.Run.State)) {
			all = append(all, r.Run)
		}
	}
	all, next := pageOf(all, func(r holdpoint.Run) string { return r.ID }, f.Cursor, f.Limit)
	return all, next, nil
}

func (m *model) ApprovalByID(_ context.Context, tenant, id string) (holdpoint.Approval, error) {
	_, a, err := m.approval(tenant, id)
	if err != nil {
		return holdpoint.Approval{}, err
	}
	return *a, nil
}

func (m *model) FindApprovals(_ context.Context, tenant string, state holdpoint.ApprovalState, cursor string, limit int) ([]holdpoint.Approval, string, error) {
	var all []holdpoint.Approval
	for _, r := range m.sorted(tenant) {
		for _, a := range r.Approvals {
			if state == "" || a.State == state {
				all = append(all, a)
			}
		}
	}
	all, next := pageOf(all, func(a holdpoint.Approval) string { return a.ID }, cursor, limit)
	return all, next, nil
}

func (m *model) EffectByID(_ context.Context, tenant, id string) (holdpoint.Effect, []holdpoint.Attempt, error) {
	r, e, err := m.effectOf(tenant, id)
	if err != nil {
		return holdpoint.Effect{}, nil, err
	}
	var attempts []holdpoint.Attempt
	for _, a := range r.Attempts {
		if a.EffectID == id {
			attempts = append(attempts, a)
		}
	}
	return m.shown(e.Effect), attempts, nil
}

func (m *model) FindEffects(_ context.Context, f store.EffectFilter) ([]holdpoint.Effect, string, error) {
	var all []holdpoint.Effect
	for _, r := range m.sorted(f.Tenant) {
		for _, row := range r.Effects {
			e := m.shown(row.Effect)
			if (f.RunID == "" || f.RunID == e.RunID) && (f.State == "" || f.State == e.State) && (!f.Held || e.State == holdpoint.EffectPending && e.Hold != "") {
				all = append(all, e)
			}
		}
	}
	all, next := pageOf(all, func(e holdpoint.Effect) string { return e.ID }, f.Cursor, f.Limit)
	return all, next, nil
}

func (m *model) Events(_ context.Context, tenant, run string) ([]holdpoint.Event, error) {
	if r := m.runs[modelRef{tenant, run}]; r != nil {
		return slices.Clone(r.events), nil
	}
	if t := m.tenants[tenant]; t != nil && run == "" {
		return slices.Clone(t.events), nil
	}
	return nil, nil
}

func (m *model) AddEvents(_ context.Context, events []holdpoint.Event) error {
	for _, e := range events {
		if m.tenants[e.Tenant] == nil || e.RunID != "" && m.runs[modelRef{e.Tenant, e.RunID}] == nil {
			return refused(holdpoint.CodeNotFound)
		}
	}
	for _, e := range events {
		if e.RunID == "" {
			m.tellTenant(m.tenants[e.Tenant], e.Type)
		} else {
			m.tell(m.runs[modelRef{e.Tenant, e.RunID}], e.Type)
		}
	}
	return nil
}

func (m *model) FirstForTarget(_ context.Context, tenant, typ, target, exceptRun string) (bool, error) {
	first := true
	m.each(holdpoint.EffectCompleted, func(_ *modelRun, e *store.EffectRow) {
		if e.Tenant == tenant && e.Type == typ && e.TargetIndex == target && e.RunID != exceptRun {
			first = false
		}
	})
	return first, nil
}

func (m *model) Gauges(context.Context) (store.Gauges, error) {
	g := store.Gauges{Effects: map[holdpoint.EffectState]int64{}}
	for _, state := range []holdpoint.EffectState{holdpoint.EffectPending, holdpoint.EffectSending, holdpoint.EffectCompleted, holdpoint.EffectUnknown, holdpoint.EffectFailed} {
		oldest := time.Duration(0)
		g.Effects[state] = 0
		m.each(state, func(r *modelRun, e *store.EffectRow) {
			g.Effects[state]++
			since := e.CreatedAt
			if state == holdpoint.EffectUnknown {
				since = r.doubtedAt[e.ID]
			}
			oldest = max(oldest, m.clock().Sub(since))
		})
		switch state {
		case holdpoint.EffectPending:
			g.OldestPending = oldest
		case holdpoint.EffectUnknown:
			g.OldestUnknown = oldest
		}
	}
	g.Switches = slices.SortedFunc(maps.Values(m.switches), bySwitch)
	for _, h := range slices.SortedFunc(maps.Values(m.stopped), byHold) {
		if m.stands(h) {
			g.Holds = append(g.Holds, h)
		}
	}
	for _, r := range m.runs {
		for _, a := range r.Approvals {
			if a.State == holdpoint.ApprovalPending {
				g.Approvals++
			}
		}
	}
	return g, nil
}
