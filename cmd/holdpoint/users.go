package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func (p *program) usersCommand() *cobra.Command {
	return group("users", "Accounts, roles and tokens of people",
		examples("holdpoint users list", "holdpoint users add ana@acme.example --local"),
		p.usersAdd(), p.usersList(),
		p.usersDisable("disable", "Disable an account: its sessions end and its tokens are revoked", true),
		p.usersDisable("enable", "Enable a disabled account again", false),
		p.usersRole("grant", "Give a person a role beside those of the policy", "has", desk.grant),
		p.usersRole("revoke", "Take a granted role back; what the policy says stays", "has no more grant of", desk.revoke),
		p.usersToken())
}

func (p *program) usersAdd() *cobra.Command {
	var stdin bool
	c := &cobra.Command{
		Use:   "add EMAIL",
		Short: "Make an account; its first password is shown this once",
		Long: "Makes an account with a random password that must be changed at the first log-in. With --password-stdin the first line of\n" +
			"standard input is the password.",
		Example: examples("holdpoint users add ana@acme.example", "holdpoint users add ana@acme.example --local --password-stdin < password.txt"),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			password := ""
			if stdin {
				line, err := bufio.NewReader(io.LimitReader(p.in, 4096)).ReadString('\n')
				if password = strings.TrimRight(line, "\r\n"); password == "" {
					return usagef("standard input holds no password (%v); write it as the first line", err)
				}
			}
			return p.withDesk(ctx, cmd, func(d desk) error {
				person, err := d.addPerson(ctx, args[0], password)
				if err != nil {
					return err
				}
				return p.answer(person, func(w io.Writer) {
					if person.Password == "" {
						fmt.Fprintf(w, "%s has an account with the password you chose.\n", person.Email)
						return
					}
					pairs(w, "person", person.Email, "password", person.Password)
					fmt.Fprintln(w, "\nThe password is not shown again and must be changed at the first log-in.")
				})
			})
		}),
	}
	eitherFlags(c)
	c.Flags().BoolVar(&stdin, "password-stdin", false, "read the password from standard input")
	return c
}

func (p *program) usersList() *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Short:   "List accounts with the roles that count now",
		Example: examples("holdpoint users list", "holdpoint users list --local --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			return p.withDesk(ctx, cmd, func(d desk) error {
				people, err := d.people(ctx)
				if err != nil {
					return err
				}
				return p.answer(map[string]any{"users": list(people)}, func(w io.Writer) {
					rows := make([][]string, len(people))
					for i, x := range people {
						state := "active"
						switch {
						case x.Disabled:
							state = "disabled"
						case x.MustChange:
							state = "must change password"
						}
						rows[i] = []string{x.Email, strings.Join(x.Roles, ","), state, at(x.CreatedAt)}
					}
					table(w, "PERSON | ROLES | STATE | CREATED", rows)
				})
			})
		}),
	}
	eitherFlags(c)
	return c
}

// usersDisable makes the commands disable and enable.
func (p *program) usersDisable(name, about string, disabled bool) *cobra.Command {
	c := &cobra.Command{
		Use:     name + " EMAIL",
		Short:   about,
		Example: examples("holdpoint users " + name + " ana@acme.example"),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.withDesk(ctx, cmd, func(d desk) error {
				if err := d.disable(ctx, args[0], disabled); err != nil {
					return err
				}
				return p.done(map[string]any{"email": args[0], "disabled": disabled}, "%s is %sd.", args[0], name)
			})
		}),
	}
	eitherFlags(c)
	return c
}

// usersRole makes the commands grant and revoke, which differ in one call.
func (p *program) usersRole(name, about, now string, change func(desk, context.Context, string, string) error) *cobra.Command {
	c := &cobra.Command{
		Use:     name + " EMAIL ROLE",
		Short:   about,
		Example: examples("holdpoint users " + name + " ana@acme.example operator"),
		Args:    cobra.ExactArgs(2),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.withDesk(ctx, cmd, func(d desk) error {
				if err := change(d, ctx, args[0], args[1]); err != nil {
					return err
				}
				return p.done(map[string]any{"email": args[0], "role": args[1], "granted": name == "grant"}, "%s %s the role %s.", args[0], now, args[1])
			})
		}),
	}
	eitherFlags(c)
	return c
}

func (p *program) usersToken() *cobra.Command {
	var name string
	var scopes []string
	c := &cobra.Command{
		Use:   "token EMAIL --scopes SCOPES",
		Short: "Make a token of a person; it is shown this once",
		Long: "Makes a token that acts as the person, within the person's roles and these scopes: read, content, decide, operate, switch,\n" +
			"admin. Over the API a person makes tokens only of their own; with --local anybody's.",
		Example: examples("holdpoint users token ana@acme.example --scopes decide --local", "holdpoint users token ana@acme.example --scopes read,decide --json"),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.withDesk(ctx, cmd, func(d desk) error {
				token, err := d.createToken(ctx, args[0], name, scopeList(scopes))
				if err != nil {
					return err
				}
				return p.answer(token, func(w io.Writer) {
					pairs(w, "id", token.ID, "token", token.Key)
					fmt.Fprintln(w, "\nThe token is not shown again.")
				})
			})
		}),
	}
	eitherFlags(c)
	c.Flags().StringVar(&name, "name", "command line", "what the token is for")
	c.Flags().StringSliceVar(&scopes, "scopes", nil, "what it may do: read, content, decide, operate, switch, admin")
	required(c, "scopes")
	return c
}
