package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
)

func (p *program) tenantsCommand() *cobra.Command {
	create := &cobra.Command{
		Use:     "create NAME",
		Short:   "Make a tenant; its switches start off",
		Example: examples("holdpoint tenants create acme"),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			l, err := p.openStore(ctx, cmd)
			if err != nil {
				return err
			}
			defer l.Close()
			by := l.by
			by.Tenant = args[0]
			if err := l.CreateTenant(ctx, by, args[0]); err != nil {
				return err
			}
			return p.done(map[string]string{"name": args[0]}, "Tenant %s is there; add a person with holdpoint users add EMAIL --local --tenant %s.", args[0], args[0])
		}),
	}
	list := &cobra.Command{
		Use:     "list",
		Short:   "List the tenants of this instance",
		Example: examples("holdpoint tenants list", "holdpoint tenants list --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			l, err := p.openStore(ctx, cmd)
			if err != nil {
				return err
			}
			defer l.Close()
			tenants, err := l.Tenants(ctx)
			if err != nil {
				return err
			}
			return p.answer(map[string]any{"tenants": list(tenants)}, func(w io.Writer) {
				rows := make([][]string, len(tenants))
				for i, t := range tenants {
					rows[i] = []string{t.Name, short(t.ActivePolicy), at(t.CreatedAt)}
				}
				table(w, "TENANT | ACTIVE POLICY | CREATED", rows)
			})
		}),
	}
	storeFlags(create)
	storeFlags(list)
	return group("tenants", "Tenants of this instance; the store is opened on this machine",
		examples("holdpoint tenants list", "holdpoint tenants create acme"), create, list)
}
