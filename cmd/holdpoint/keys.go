package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint"
)

func (p *program) keysCommand() *cobra.Command {
	return group("keys", "Make, list and revoke machine keys and people's tokens",
		examples("holdpoint keys list", "holdpoint keys create --name n8n --scopes work,read --local"),
		p.keysCreate(), p.keysList(), p.keysRevoke())
}

// scopeList turns words into scopes; the server says which of them exist.
func scopeList(words []string) []holdpoint.Scope {
	scopes := make([]holdpoint.Scope, 0, len(words))
	for _, w := range words {
		if w = strings.TrimSpace(w); w != "" {
			scopes = append(scopes, holdpoint.Scope(w))
		}
	}
	return scopes
}

func joinScopes(scopes []holdpoint.Scope) string {
	words := make([]string, len(scopes))
	for i, s := range scopes {
		words[i] = string(s)
	}
	return strings.Join(words, ",")
}

func (p *program) keysCreate() *cobra.Command {
	var name string
	var scopes []string
	c := &cobra.Command{
		Use:     "create --name NAME --scopes SCOPES",
		Short:   "Make a machine key; it is shown this once",
		Long:    "Makes a machine key for workflows. Scopes are work (claim and hand in drafts), read (states and hashes) and content.",
		Example: examples("holdpoint keys create --name n8n --scopes work,read", "holdpoint keys create --name report --scopes read --local --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			return p.withDesk(ctx, cmd, func(d desk) error {
				key, err := d.createKey(ctx, name, scopeList(scopes))
				if err != nil {
					return err
				}
				return p.answer(key, func(w io.Writer) {
					pairs(w, "id", key.ID, "key", key.Key)
					fmt.Fprintln(w, "\nThe key is not shown again.")
				})
			})
		}),
	}
	eitherFlags(c)
	c.Flags().StringVar(&name, "name", "", "what the key is for")
	c.Flags().StringSliceVar(&scopes, "scopes", nil, "what it may do: work, read, content")
	required(c, "name", "scopes")
	return c
}

func (p *program) keysList() *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Short:   "List machine keys and people's tokens, without their secrets",
		Example: examples("holdpoint keys list", "holdpoint keys list --local --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			return p.withDesk(ctx, cmd, func(d desk) error {
				keys, err := d.keys(ctx)
				if err != nil {
					return err
				}
				return p.answer(map[string]any{"keys": list(keys)}, func(w io.Writer) {
					rows := make([][]string, len(keys))
					for i, k := range keys {
						state := "live"
						if k.RevokedAt != nil {
							state = "revoked " + atOf(k.RevokedAt)
						}
						rows[i] = []string{k.ID, k.Kind, k.Name, joinScopes(k.Scopes), at(k.CreatedAt), atOf(k.LastUsedAt), state}
					}
					table(w, "ID | KIND | NAME | SCOPES | CREATED | LAST USED | STATE", rows)
				})
			})
		}),
	}
	eitherFlags(c)
	return c
}

func (p *program) keysRevoke() *cobra.Command {
	c := &cobra.Command{
		Use:     "revoke ID",
		Short:   "Revoke a key or token at once",
		Example: examples("holdpoint keys revoke 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11"),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.withDesk(ctx, cmd, func(d desk) error {
				if err := d.revokeKey(ctx, args[0]); err != nil {
					return err
				}
				return p.done(map[string]any{"id": args[0], "revoked": true}, "Key %s is revoked.", args[0])
			})
		}),
	}
	eitherFlags(c)
	return c
}

// required marks flags without which the command line is not complete.
func required(c *cobra.Command, flags ...string) {
	for _, f := range flags {
		_ = c.MarkFlagRequired(f)
	}
}

// done answers a change with one sentence.
func (p *program) done(v any, format string, args ...any) error {
	return p.answer(v, func(w io.Writer) { fmt.Fprintf(w, format+"\n", args...) })
}
