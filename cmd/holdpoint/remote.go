package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/auth"
)

// remote is a server, reached with one token.
type remote struct {
	*client.Client
	url   string
	token string
}

// remote makes the client that HOLDPOINT_URL and HOLDPOINT_TOKEN describe.
func (p *program) remote(cmd *cobra.Command) (*remote, error) {
	s, err := p.settings(cmd)
	if err != nil {
		return nil, err
	}
	if s.Token == "" {
		return nil, usagef("set HOLDPOINT_TOKEN, or name a file that holds it with --token-file: this command calls the server at %s", s.URL)
	}
	return &remote{client.New(s.URL, s.Token), s.URL, s.Token}, nil
}

// explain says what only the caller's side knows about an error: that no connection was made, or whose token it was.
func (r *remote) explain(err error) error {
	var wire *net.OpError
	if errors.As(err, &wire) && wire.Op == "dial" {
		return holdpoint.Errorf(holdpoint.CodeUnavailable, "nothing answers at %s, so nothing was done; start holdpoint serve, or correct HOLDPOINT_URL", r.url).Wrap(err)
	}
	kind, _ := auth.KindOf(r.token)
	var known *holdpoint.Error
	if kind == auth.KindMachine && errors.As(err, &known) && known.Code == holdpoint.CodeForbidden {
		return holdpoint.Errorf(known.Code, "%s HOLDPOINT_TOKEN holds a machine key; set it to a person's token.", known.Message).Wrap(err)
	}
	return err
}

// find gives the run that an id or an idempotency key names. A key that several workflows use needs the workflow.
func (r *remote) find(ctx context.Context, ref, workflow string) (client.Run, error) {
	if _, err := uuid.Parse(ref); err == nil && len(ref) == 36 {
		v, err := r.Run(ctx, ref)
		if !errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeNotFound}) {
			return v, err
		}
	}
	page, err := r.Runs(ctx, client.RunQuery{Key: ref, Workflow: workflow})
	switch {
	case err != nil:
		return client.Run{}, err
	case len(page.Runs) == 0:
		return client.Run{}, holdpoint.Errorf(holdpoint.CodeNotFound, "there is no run with this id or key; holdpoint runs list shows the newest")
	case len(page.Runs) > 1:
		choices := make([]string, len(page.Runs))
		for i, x := range page.Runs {
			choices[i] = fmt.Sprintf("%s (%s)", x.ID, x.Workflow)
		}
		return client.Run{}, usagef("several runs have this key; name one by its id: %s", strings.Join(choices, ", "))
	}
	return r.Run(ctx, page.Runs[0].ID)
}

func (r *remote) createKey(ctx context.Context, name string, scopes []holdpoint.Scope) (client.NewKey, error) {
	return r.CreateKey(ctx, name, scopes)
}

func (r *remote) keys(ctx context.Context) ([]holdpoint.Key, error) { return r.Keys(ctx) }

func (r *remote) revokeKey(ctx context.Context, id string) error { return r.RevokeKey(ctx, id) }

func (r *remote) addPerson(ctx context.Context, email, password string) (client.NewUser, error) {
	return r.AddUser(ctx, email, password)
}

func (r *remote) people(ctx context.Context) ([]client.User, error) { return r.Users(ctx) }

func (r *remote) disable(ctx context.Context, email string, disabled bool) error {
	if disabled {
		return r.DisableUser(ctx, email)
	}
	return r.EnableUser(ctx, email)
}

func (r *remote) grant(ctx context.Context, email, role string) error {
	return r.GrantRole(ctx, email, role)
}

func (r *remote) revoke(ctx context.Context, email, role string) error {
	return r.RevokeRole(ctx, email, role)
}

// createToken makes a token of the person whose token this is, and of nobody else.
func (r *remote) createToken(ctx context.Context, email, name string, scopes []holdpoint.Scope) (client.NewKey, error) {
	me, err := r.Me(ctx)
	if err != nil {
		return client.NewKey{}, err
	}
	if !strings.EqualFold(me.Email, email) {
		return client.NewKey{}, holdpoint.Errorf(holdpoint.CodeForbidden, "over the API a token is made only by its own person; use --local on the server for somebody else")
	}
	return r.CreateToken(ctx, name, scopes)
}

func (r *remote) activePolicy(ctx context.Context) (string, error) {
	active, err := r.Policy(ctx, "active")
	if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeNoPolicy}) {
		return "", nil
	}
	return active.Hash, err
}

func (r *remote) putPolicy(ctx context.Context, document string, files map[string]string) (client.StoredPolicy, error) {
	return r.PutPolicy(ctx, document, files)
}

func (r *remote) activatePolicy(ctx context.Context, hash, expected string) error {
	return r.ActivatePolicy(ctx, hash, expected)
}
