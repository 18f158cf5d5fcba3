package faultstore_test

import (
	"context"
	"net/http"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/store"
)

// operatorScenarios are what operators and administrators call.
var operatorScenarios = []scenario{
	{
		name:  "an operator ends doubts",
		verbs: []string{"FindEffects", "EffectByID", "ScheduleLookup", "ResolveEffect", "CancelEffect", "Switches", "InFlight", "SetSwitch", "Ping"},
		prepare: func(w *world) {
			w.unknown("reply", "k")
			w.switchOn(false)
			w.approved("reply", "other")
		},
		act: func(w *world) {
			w.again(func() error { return w.ops.Ready(w.Context()) })
			page := ask(w, func(ctx context.Context) (client.EffectPage, error) {
				return w.ops.Effects(ctx, client.EffectQuery{State: holdpoint.EffectUnknown})
			})
			require.Len(w, page.Effects, 1)
			id := page.Effects[0].ID
			require.Equal(w, id, ask(w, func(ctx context.Context) (client.Effect, error) { return w.ops.Effect(ctx, id) }).ID)
			ask(w, func(ctx context.Context) (holdpoint.Effect, error) { return w.ops.Reconcile(ctx, id) })
			ask(w, func(ctx context.Context) (holdpoint.Effect, error) {
				return w.ops.Resolve(ctx, id, client.Resolution{Verdict: holdpoint.VerdictSent, ProviderID: "p", Reason: "seen"})
			}, holdpoint.CodeNotAllowedNow)
			pending := ask(w, func(ctx context.Context) (client.EffectPage, error) {
				return w.ops.Effects(ctx, client.EffectQuery{State: holdpoint.EffectPending})
			})
			require.Len(w, pending.Effects, 1)
			ask(w, func(ctx context.Context) (holdpoint.Effect, error) {
				return w.ops.CancelEffect(ctx, pending.Effects[0].ID, "not wanted")
			}, holdpoint.CodeNotAllowedNow)
			s := ask(w, w.ops.Switches)
			require.Empty(w, s.InFlight)
			ask(w, func(ctx context.Context) (client.Flipped, error) {
				return w.ops.SetSwitch(ctx, "tenant", true, "go on")
			})
		},
	},
	{
		name:  "an administrator changes people and keys",
		verbs: []string{"CreatePerson", "ListPeople", "PersonByEmail", "GrantRole", "RevokeRole", "SetDisabled", "CreateKey", "ListKeys", "RevokeKey"},
		act: func(w *world) {
			ctx, eve := w.Context(), "eve@acme.example"
			ask(w, func(ctx context.Context) (client.NewUser, error) { return w.ops.AddUser(ctx, eve, password) }, holdpoint.CodeExists)
			require.Len(w, ask(w, w.ops.Users), 3)
			w.again(func() error { return w.ops.GrantRole(ctx, eve, "lead") })
			w.again(func() error { return w.ops.RevokeRole(ctx, eve, "lead") }, holdpoint.CodeNotFound)
			w.again(func() error { return w.ops.GrantRole(ctx, eve, "auditor") })
			w.again(func() error { return w.ops.DisableUser(ctx, eve) })
			w.again(func() error { return w.ops.EnableUser(ctx, eve) })
			k := ask(w, func(ctx context.Context) (client.NewKey, error) {
				return w.ops.CreateKey(ctx, "second", []holdpoint.Scope{holdpoint.ScopeRead})
			})
			_, err := client.New(w.url, k.Key).Me(ctx)
			require.NotErrorIs(w, err, &holdpoint.Error{Code: holdpoint.CodeUnauthenticated}, "the key that was answered works")
			for _, key := range ask(w, w.ops.Keys) {
				if key.Name == "second" {
					w.again(func() error { return w.ops.RevokeKey(ctx, key.ID) }, holdpoint.CodeNotFound)
				}
			}
			w.again(func() error {
				_, err := client.New(w.url, k.Key).Me(ctx)
				if code(err) == holdpoint.CodeUnauthenticated {
					return nil
				}
				require.Error(w, err, "the key is revoked")
				return err
			})
		},
	},
	{
		name:  "a person changes the password",
		verbs: []string{"SetPassword", "PersonByID"},
		act: func(w *world) {
			const fresh = "another correct horse"
			b := w.browser()
			enter := func(word string) int {
				_, page := b.do(http.MethodGet, "/login", nil)
				status, _ := b.submit(page, "/login", "email", "ana@acme.example", "password", word)
				return status
			}
			require.Equal(w, http.StatusSeeOther, enter(password))
			_, page := b.do(http.MethodGet, "/console/password", nil)
			status, _ := b.submit(page, "/console/password", "present", password, "fresh", fresh, "again", fresh)
			require.Equal(w, http.StatusSeeOther, status)
			b = w.browser()
			require.Equal(w, http.StatusUnauthorized, enter(password))
			require.Equal(w, http.StatusSeeOther, enter(fresh))
		},
	},
	{
		name:  "a policy owner changes the policy",
		verbs: []string{"PutPolicy", "ListPolicies", "PolicyByHash", "TenantByName", "ListPeople", "ActivatePolicy"},
		act: func(w *world) {
			ctx := w.Context()
			before, err := w.store.TenantByName(ctx, tenant)
			require.NoError(w, err)
			document := strings.ReplaceAll(strings.Replace(pathPolicy, "approve_by: 24h", "approve_by: 12h", 1), "PROVIDER", w.provider.URL())
			p := ask(w, func(ctx context.Context) (client.StoredPolicy, error) {
				return w.ops.PutPolicy(ctx, document, map[string]string{"reply.json": pathContract})
			})
			require.Len(w, ask(w, w.ops.Policies), 2)
			w.again(func() error { return w.ops.ActivatePolicy(ctx, p.Hash, before.ActivePolicy) }, holdpoint.CodePolicyMoved)
			require.True(w, ask(w, func(ctx context.Context) (client.Policy, error) { return w.ops.Policy(ctx, p.Hash) }).Active)
		},
	},
	{
		name:  "a command makes a tenant",
		verbs: []string{"CreateTenant", "ListTenants"},
		act: func(w *world) {
			local := engine.Local("second", "test")
			w.local(func() error { return w.engine.CreateTenant(w.Context(), local, "second") }, holdpoint.CodeExists)
			var all []store.Tenant
			w.local(func() (err error) { all, err = w.engine.Tenants(w.Context()); return err })
			require.Len(w, all, 2)
			w.local(func() error { return w.engine.CheckMaster(w.Context()) })
		},
	},
}
