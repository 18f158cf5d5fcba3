package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/app"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/store"
)

// localStore is the store, opened by a command on the server itself.
type localStore struct {
	*engine.Engine
	io.Closer
	by holdpoint.Actor
}

// appOptions are the settings of this process as the composition root takes them.
func (s settings) appOptions() (app.Options, error) {
	key, err := readMasterKey(s.SecretKeyFile)
	return app.Options{DB: s.DB, DBDirect: s.DBDirect, Listen: s.Listen, PublicURL: s.PublicURL, MasterKey: key,
		ActionsEnabled: s.actionsEnabled(), EgressAllow: s.egress}, err
}

// withoutLoops opens and migrates the store as its only server, and starts nothing.
func withoutLoops(ctx context.Context, o app.Options) (*app.App, error) {
	o.Roles = []string{app.RoleAPI}
	return app.New(ctx, o)
}

// localFlags adds the flags of commands that always open the store.
func localFlags(cmd *cobra.Command) {
	storeFlags(cmd)
	cmd.Flags().String("tenant", engine.DefaultTenant, "tenant")
}

// eitherFlags adds the flags of commands that call the API and, with --local, open the store.
func eitherFlags(cmd *cobra.Command) {
	apiFlags(cmd)
	localFlags(cmd)
	cmd.Flags().Bool("local", false, "open the store on this machine instead of calling the API")
}

// isLocal reports whether --local was given.
func isLocal(cmd *cobra.Command) bool {
	local, _ := cmd.Flags().GetBool("local")
	return local
}

// openStore opens the store for a local command, beside a server if one runs.
func (p *program) openStore(ctx context.Context, cmd *cobra.Command) (*localStore, error) {
	s, err := p.settings(cmd)
	if err != nil {
		return nil, err
	}
	o, err := s.appOptions()
	if err != nil {
		return nil, err
	}
	if path, ok := strings.CutPrefix(s.DB, "sqlite:"); ok {
		if _, err := os.Stat(path); err != nil {
			return nil, usagef("there is no store at %s; run holdpoint init, or say with HOLDPOINT_DB where it is", path)
		}
	}
	e, closer, err := app.OpenStore(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := e.CheckMaster(ctx); err != nil {
		return nil, errors.Join(err, closer.Close())
	}
	name := engine.DefaultTenant
	if f := cmd.Flags().Lookup("tenant"); f != nil {
		name = f.Value.String()
	}
	return &localStore{e, closer, engine.Local(name, osUser())}, nil
}

// withTenant opens the store for a command that works inside the tenant of --tenant.
func (p *program) withTenant(ctx context.Context, cmd *cobra.Command, work func(*localStore) error) error {
	l, err := p.openStore(ctx, cmd)
	if err != nil {
		return err
	}
	defer l.Close()
	tenants, err := l.Tenants(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(tenants, func(t store.Tenant) bool { return t.Name == l.by.Tenant }) {
		return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no tenant %s; make it with holdpoint tenants create %s", l.by.Tenant, l.by.Tenant)
	}
	return work(l)
}

// osUser is the name that local commands are recorded under.
func osUser() string {
	u, err := user.Current()
	if err != nil {
		return "unknown"
	}
	return u.Username
}
