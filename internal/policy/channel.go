package policy

import (
	"errors"
	"net/mail"
	"net/url"
	"slices"
	"strconv"

	"github.com/holdpoint/holdpoint"
	"go.yaml.in/yaml/v3"
)

// Channel is a way to tell people and systems something.
type Channel struct {
	Name     string
	Kind     string // smtp or webhook
	Personal bool   // a webhook that reaches exactly the addressed person; its links may carry a token
	From     string // smtp: the sender

	url, username, password, secret text
}

// The kinds of channel.
const (
	ChannelSMTP    = "smtp"
	ChannelWebhook = "webhook"
)

// Private reports whether a message on this channel reaches only the person it is addressed to.
func (c *Channel) Private() bool {
	return c.Kind == ChannelSMTP || c.Kind == ChannelWebhook && c.Personal
}

// Resolve gives address and credentials. The error has code unavailable and names the secret that is missing, or code
// invalid_policy when the address that a secret holds is not usable.
func (c *Channel) Resolve(s Secrets) (URL, Username, Password, Secret string, err error) {
	for _, field := range []struct {
		t  text
		to *string
	}{{c.url, &URL}, {c.username, &Username}, {c.password, &Password}, {c.secret, &Secret}} {
		if *field.to, err = field.t.render(nil, s); err != nil {
			return "", "", "", "", renderError("channel "+strconv.Quote(c.Name), err)
		}
	}
	if err := checkChannelURL(c.Kind, URL); err != nil {
		return "", "", "", "", holdpoint.Errorf(holdpoint.CodeInvalidPolicy, "channel %q, url: %v", c.Name, err)
	}
	return URL, Username, Password, Secret, nil
}

// MissingSecrets lists the references that cannot be resolved here, sorted.
func (c *Channel) MissingSecrets(s Secrets) []string {
	return missing(slices.Concat(c.url.secrets(), c.username.secrets(), c.password.secrets(), c.secret.secrets()), s)
}

func (r *reader) channels(n *yaml.Node) map[string]*Channel {
	all := map[string]*Channel{}
	for _, e := range r.object(n, `"channels"`).entries {
		if r.name(e.key, "a channel") {
			all[e.key.Value] = r.channel(e.key.Value, e.value)
		}
	}
	return all
}

func (r *reader) channel(name string, n *yaml.Node) *Channel {
	o := r.object(n, "channel "+strconv.Quote(name))
	c := &Channel{Name: name, Kind: o.string("kind", "")}
	kind := o.need("kind", "write `kind: smtp` or `kind: webhook`")
	if kind == nil || c.Kind == "" {
		return c
	}
	at := func(key string) place { return place{secrets: true, what: strconv.Quote(key) + " of " + o.what} }
	field := func(n *yaml.Node, key string) text {
		if n == nil || o.reader.string(n, at(key).what) == "" {
			return nil
		}
		return o.text(n, at(key))
	}
	switch c.Kind {
	case ChannelSMTP:
		c.url = o.channelURL(c.Kind, field(o.need("url", "write smtp://host:587 or smtps://host"), "url"))
		c.username, c.password = field(o.has("username"), "username"), field(o.has("password"), "password")
		if (o.has("username") == nil) != (o.has("password") == nil) {
			o.fail(n, "missing", "%s needs both username and password, or neither", o.what)
		}
		o.reference("password", c.password)
		if f := o.need("from", "write the sender's address"); f != nil {
			if c.From = o.reader.string(f, `"from"`); c.From != "" {
				if _, err := mail.ParseAddress(c.From); err != nil {
					o.fail(f, "invalid_value", `"from" is an address such as "Holdpoint <holdpoint@acme.example>"`)
				}
			}
		}
	case ChannelWebhook:
		c.url = o.channelURL(c.Kind, field(o.need("url", "write the address that takes the messages"), "url"))
		c.secret = field(o.need("secret", "name the signing secret as ${env:NAME} or ${file:PATH}"), "secret")
		o.reference("secret", c.secret)
		c.Personal = o.boolean("personal")
	case "slack", "teams":
		o.fail(kind, later, "channel kind %q is not in this version: use kind smtp or webhook", c.Kind)
		return c
	default:
		o.fail(kind, "invalid_value", "use kind smtp or webhook; %q is not a kind of channel", c.Kind)
		return c
	}
	o.close()
	return c
}

// reference refuses a secret that stands in the document, which is stored and shown.
func (o *object) reference(key string, t text) {
	if len(t) > 0 && len(t.secrets()) == 0 {
		o.fail(o.has(key), "literal_secret", "%q of %s: name the secret as ${env:NAME} or ${file:PATH}; the document is stored and shown", key, o.what)
	}
}

// channelURL checks a constant address; one that holds a secret is checked when it is resolved.
func (o *object) channelURL(kind string, t text) text {
	if len(t) > 0 && len(t.secrets()) == 0 {
		if err := checkChannelURL(kind, t.String()); err != nil {
			o.fail(o.has("url"), "invalid_url", "%s: %v", o.what, err)
		}
	}
	return t
}

// checkChannelURL says what is wrong with an address, without repeating it: a hook's address may be its secret.
func checkChannelURL(kind, address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Hostname() == "" || u.Opaque != "":
		return errors.New("write a well-formed URL with a host")
	case u.User != nil:
		return errors.New("write credentials into their own keys, not into the address")
	case u.Fragment != "":
		return errors.New("leave out the fragment")
	}
	if kind == ChannelWebhook {
		if u.Scheme != "https" && u.Scheme != "http" {
			return errors.New("use https:// or http://")
		}
		return nil
	}
	switch {
	case u.Scheme != "smtp" && u.Scheme != "smtps":
		return errors.New("use smtp:// (STARTTLS) or smtps:// (TLS from the first byte)")
	case u.Path != "" && u.Path != "/":
		return errors.New("leave out the path")
	case u.RawQuery != "" && u.RawQuery != "tls=none":
		return errors.New("the only parameter is tls=none")
	case u.RawQuery == "tls=none" && (u.Scheme != "smtp" || !isLoopback(u.Hostname())):
		return errors.New("use TLS: tls=none is for a mail server on this machine")
	}
	return nil
}
