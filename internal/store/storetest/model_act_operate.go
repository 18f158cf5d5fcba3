package storetest

import (
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

func actSetSwitch(w *twin) {
	c := store.SwitchChange{Tenant: modelTenants[0], On: !w.seldom("off", 3), ReasonText: []byte("why"), Who: admin,
		Scope: pick(w, "scope", "global", "tenant", "workflow:refund", "connector:mailer", "type:note", "messages", "messages", "nonsense", "type:")}
	if w.seldom("no such tenant", 12) {
		c.Tenant = "nobody"
	}
	w.flip(c)
}

func (w *twin) flip(c store.SwitchChange) {
	_, _ = ask(w, "SetSwitch", func(s store.Store) (pair[holdpoint.Switch, []holdpoint.Attempt], error) {
		return two(s.SetSwitch(w.ctx, c))
	})
}

func actHoldConnector(w *twin) {
	h := store.ConnectorHold{Tenant: modelTenants[0], Connector: pick(w, "connector", "mailer", "crm"), Type: pick(w, "type", "", "", "mail", "note"),
		Hold: pick(w, "hold", holdpoint.HoldQuota, holdpoint.HoldCredentials), Detail: "detail"}
	if pick(w, "passing", true, false) {
		h.Until = w.now().Add(pick(w, "until", time.Minute, 10*time.Minute))
	}
	_, _ = ask(w, "HoldConnector", func(s store.Store) (none, error) { return none{}, s.HoldConnector(w.ctx, h, lanes) })
}

func actReleaseConnector(w *twin) {
	connector, version := pick(w, "connector", "mailer", "crm"), pick(w, "version", "v1", "v1", "v2")
	_, _ = ask(w, "ReleaseConnector", func(s store.Store) (int, error) {
		return s.ReleaseConnector(w.ctx, modelTenants[0], connector, version, admin)
	})
}

func actPutProof(w *twin) {
	p := store.Proof{Tenant: modelTenants[0], Connector: pick(w, "connector", "mailer", "crm"), Version: pick(w, "version", "v1", "v2"), KeyLife: time.Hour, ProvedAt: w.now(),
		ExpiresAt: w.now().Add(pick(w, "valid", time.Minute, time.Hour))}
	_, _ = ask(w, "PutProof", func(s store.Store) (none, error) { return none{}, s.PutProof(w.ctx, p) })
}

func actProof(w *twin) {
	tenant, connector, version := w.tenant(), pick(w, "connector", "mailer", "crm"), pick(w, "version", "v1", "v2")
	_, _ = ask(w, "Proof", func(s store.Store) (*store.Proof, error) { return s.Proof(w.ctx, tenant, connector, version) })
}

func actAddMessages(w *twin) {
	var list []store.Message
	for _, id := range [][]string{{w.id("message")}, {w.id("message"), w.id("message")}, {"message-x", w.id("message")}, nil}[pick(w, "messages", 0, 0, 1, 2, 3)] {
		list = append(list, store.Message{Data: []byte("data"), MessageRecord: holdpoint.MessageRecord{ID: id, Tenant: w.tenant(), Type: "alert", Channel: "email", Email: "ops@acme.example"}})
	}
	_, _ = ask(w, "AddMessages", func(s store.Store) (none, error) { return none{}, s.AddMessages(w.ctx, list) })
}

func actLeaseMessages(w *twin) {
	by, lease, limit := w.dispatcher(), pick(w, "for", time.Minute, 10*time.Second), pick(w, "limit", 100, 1, 2)
	_, _ = ask(w, "LeaseMessages", func(s store.Store) ([]store.Message, error) {
		return sortedBy(s.LeaseMessages(w.ctx, by, lease, limit))(func(m store.Message) string { return m.ID + m.Tenant })
	})
}

func actSettleMessage(w *twin) {
	ids := []string{"message-none"}
	by := w.dispatcher()
	for _, m := range w.model.messages {
		if ids = append(ids, m.ID); m.owner == by && m.State == "pending" {
			ids = append(ids, m.ID, m.ID, m.ID)
		}
	}
	id, tenant, delay := pick(w, "message", ids...), w.tenant(), pick(w, "delay", 0, time.Minute)
	state := pick(w, "state", "delivered", "pending", "pending", "dropped", "failed", "lost")
	if w.seldom("by nobody", 12) {
		by = ""
	}
	_, _ = ask(w, "SettleMessage", func(s store.Store) (none, error) {
		return none{}, s.SettleMessage(w.ctx, by, id, tenant, state, "detail", delay)
	})
}

func actCreateTenant(w *twin) {
	name := pick(w, "tenant", append(modelTenants, "gamma")...)
	_, _ = ask(w, "CreateTenant", func(s store.Store) (none, error) {
		return none{}, s.CreateTenant(w.ctx, store.Tenant{Name: name, EffectKey: []byte("e"), IndexKey: []byte("i"), ActivePolicy: "p1"}, local)
	})
}

func actTenantByName(w *twin) {
	name := pick(w, "tenant", append(modelTenants, "gamma")...)
	_, _ = ask(w, "TenantByName", func(s store.Store) (store.Tenant, error) { return s.TenantByName(w.ctx, name) })
}

func actPutPolicy(w *twin) {
	p := store.PolicyRow{Tenant: pick(w, "tenant", append(modelTenants, "nobody")...), Hash: pick(w, "hash", "p1", "p2", "p3"), Document: "version: 1\n",
		Files: pick(w, "files", nil, map[string]string{"a.json": "{}"})}
	who := pick(w, "who", admin, local)
	_, _ = ask(w, "PutPolicy", func(s store.Store) (none, error) { return none{}, s.PutPolicy(w.ctx, p, who) })
}

func actPolicyByHash(w *twin) {
	tenant, hash := w.tenant(), pick(w, "hash", "p1", "p2", "p3")
	_, _ = ask(w, "PolicyByHash", func(s store.Store) (store.PolicyRow, error) { return s.PolicyByHash(w.ctx, tenant, hash) })
}

func actActivatePolicy(w *twin) {
	tenant, hash, expected := w.tenant(), pick(w, "hash", "p1", "p2", "p3"), pick(w, "expected", "", "p1", "p2")
	if t := w.model.tenants[tenant]; pick(w, "right", true, false) {
		expected = t.ActivePolicy
	}
	_, _ = ask(w, "ActivatePolicy", func(s store.Store) (none, error) {
		return none{}, s.ActivatePolicy(w.ctx, tenant, hash, expected, admin)
	})
}

func actAddEvents(w *twin) {
	event := func(run string) holdpoint.Event {
		return holdpoint.Event{Tenant: modelTenants[0], RunID: run, Type: "content.read", Who: admin, Data: map[string]any{"part": "payload"}}
	}
	run := w.someRun().ID
	list := [][]holdpoint.Event{{event("")}, {event(""), event(run), event(run)}, {event(""), event("run-none")}, nil}[pick(w, "events", 0, 1, 2, 3)]
	_, _ = ask(w, "AddEvents", func(s store.Store) (none, error) { return none{}, s.AddEvents(w.ctx, list) })
}

func actFindRuns(w *twin) {
	f := store.RunFilter{Tenant: w.tenant(), KeyHMAC: pick(w, "hmac", "", "", "", "hmac-k1"), Key: pick(w, "key", "", "", "", "k2"), Workflow: pick(w, "workflow", "", "", "refund", "order"),
		Record: pick(w, "record", "", "", "", "record-k1"), State: pick(w, "state", "", "", holdpoint.RunProcessing, holdpoint.RunFailedTerminal),
		Cursor: pick(w, "cursor", "", "", w.someRun().ID), Limit: pick(w, "limit", 0, 1, 2)}
	_, _ = ask(w, "FindRuns", func(s store.Store) (pair[[]holdpoint.Run, string], error) { return two(s.FindRuns(w.ctx, f)) })
}
