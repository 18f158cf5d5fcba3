package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/policy"
)

// desk administers one tenant: over the HTTP API, or with --local in the store that is open here.
type desk interface {
	createKey(ctx context.Context, name string, scopes []holdpoint.Scope) (client.NewKey, error)
	keys(ctx context.Context) ([]holdpoint.Key, error)
	revokeKey(ctx context.Context, id string) error

	addPerson(ctx context.Context, email, password string) (client.NewUser, error)
	people(ctx context.Context) ([]client.User, error)
	disable(ctx context.Context, email string, disabled bool) error
	grant(ctx context.Context, email, role string) error
	revoke(ctx context.Context, email, role string) error
	createToken(ctx context.Context, email, name string, scopes []holdpoint.Scope) (client.NewKey, error)

	activePolicy(ctx context.Context) (hash string, err error) // "" if none is active
	putPolicy(ctx context.Context, document string, files map[string]string) (client.StoredPolicy, error)
	activatePolicy(ctx context.Context, hash, expected string) error
}

// withDesk opens the store if --local was given, or else speaks to the server.
func (p *program) withDesk(ctx context.Context, cmd *cobra.Command, work func(desk) error) error {
	if isLocal(cmd) {
		return p.withTenant(ctx, cmd, func(l *localStore) error { return work(l) })
	}
	if f := cmd.Flags().Lookup("tenant"); f.Changed {
		return usagef("--tenant goes with --local: over the API the token says which tenant")
	}
	r, err := p.remote(cmd)
	if err != nil {
		return err
	}
	return r.explain(work(r))
}

func (l *localStore) createKey(ctx context.Context, name string, scopes []holdpoint.Scope) (client.NewKey, error) {
	k, err := l.CreateKey(ctx, l.by, name, scopes)
	return client.NewKey(k), err
}

func (l *localStore) keys(ctx context.Context) ([]holdpoint.Key, error) { return l.Keys(ctx, l.by) }

func (l *localStore) revokeKey(ctx context.Context, id string) error {
	return l.RevokeKey(ctx, l.by, id)
}

func (l *localStore) addPerson(ctx context.Context, email, password string) (client.NewUser, error) {
	x, err := l.AddPerson(ctx, l.by, email, password)
	return client.NewUser(x), err
}

func (l *localStore) people(ctx context.Context) ([]client.User, error) {
	all, err := l.People(ctx, l.by)
	out := make([]client.User, len(all))
	for i, x := range all {
		out[i] = client.User(x)
	}
	return out, err
}

func (l *localStore) disable(ctx context.Context, email string, disabled bool) error {
	return l.SetDisabled(ctx, l.by, email, disabled)
}

func (l *localStore) grant(ctx context.Context, email, role string) error {
	return l.Grant(ctx, l.by, email, role)
}

func (l *localStore) revoke(ctx context.Context, email, role string) error {
	return l.Revoke(ctx, l.by, email, role)
}

func (l *localStore) createToken(ctx context.Context, email, name string, scopes []holdpoint.Scope) (client.NewKey, error) {
	k, err := l.CreateToken(ctx, l.by, email, name, scopes)
	return client.NewKey(k), err
}

func (l *localStore) activePolicy(ctx context.Context) (string, error) {
	return l.PolicyHash(ctx, l.by.Tenant)
}

func (l *localStore) putPolicy(ctx context.Context, document string, files map[string]string) (client.StoredPolicy, error) {
	stored, err := l.PutPolicy(ctx, l.by, engine.PolicyProposal{Document: document, Files: files})
	return client.StoredPolicy{Hash: stored.Hash, Findings: findingList(stored.Findings)}, err
}

func (l *localStore) activatePolicy(ctx context.Context, hash, expected string) error {
	return l.ActivatePolicy(ctx, l.by, hash, expected)
}

// findingsOf gives the findings of a policy that was refused, whichever way it was proposed.
func findingsOf(err error) ([]client.Finding, bool) {
	var known *holdpoint.Error
	if !errors.As(err, &known) || known.Code != holdpoint.CodeInvalidPolicy || known.Detail["findings"] == nil {
		return nil, false
	}
	b, err := json.Marshal(known.Detail["findings"])
	if err != nil {
		return nil, false
	}
	var findings []client.Finding
	return findings, json.Unmarshal(b, &findings) == nil && len(findings) > 0
}

// findingList gives findings as the API does.
func findingList(all []policy.Finding) []client.Finding {
	out := make([]client.Finding, len(all))
	for i, f := range all {
		out[i] = client.Finding(f)
	}
	return out
}
