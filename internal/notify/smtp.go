package notify

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	netmail "net/mail"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/wneessen/go-mail"

	"github.com/holdpoint/holdpoint/internal/egress"
)

// SMTP delivers messages as plain-text e-mail through one relay. TLS is verified; without it nothing is sent, except to
// a relay on this machine whose URL says ?tls=none.
type SMTP struct {
	URL      string // smtp://host:port with STARTTLS, or smtps://host:port; ?tls=none on loopback only
	Username string // "" means no authentication
	Password string
	From     string        // for example "Holdpoint <holdpoint@acme.example>"
	Guard    *egress.Guard // nil permits public addresses only
	Timeout  time.Duration // of one delivery; 0 means DefaultTimeout

	roots *x509.CertPool // nil means those of the system
}

// relay is what SMTP.URL says.
type relay struct {
	host     string
	port     int
	implicit bool // TLS from the first byte
	plain    bool // no TLS at all
}

// Send delivers m to m.To. An address that cannot be an address, and a refusal of the recipient or the content with a
// code of 500 or more, are Permanent; everything else may succeed later. The Message-ID is made from m.ID.
func (s SMTP) Send(ctx context.Context, m Message) error {
	r, err := s.relay()
	if err != nil {
		return err
	}
	msg, domain, err := s.compose(m)
	if err != nil {
		return err
	}
	timeout := s.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// The library does not watch the context after the dial. Closing the connection ends whatever it waits for.
	dial := func(dialCtx context.Context, network, addr string) (net.Conn, error) {
		c, err := s.dial(dialCtx, network, addr, r)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = c.Close() })
		}
		return c, err
	}
	client, err := s.client(r, domain, timeout, dial)
	if err != nil {
		return misconfigured("the mail channel is not configured correctly; check its URL, username and sender")
	}
	session, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return dialError(err)
	}
	err = client.SendWithSMTPClient(session, msg)
	if msg.IsDelivered() {
		_ = client.CloseWithSMTPClient(session) // the relay has the message; what follows changes nothing
		return nil
	}
	return sendError(err)
}

func (s SMTP) relay() (relay, error) {
	bad := misconfigured("the mail channel's URL must be smtp://host:port or smtps://host:port; ?tls=none is for loopback only")
	u, err := url.Parse(s.URL)
	if err != nil || u.Hostname() == "" || u.User != nil || (u.Path != "" && u.Path != "/") {
		return relay{}, bad
	}
	r := relay{host: u.Hostname()}
	port := u.Port()
	switch u.Scheme {
	case "smtp":
		if port == "" {
			port = "587"
		}
	case "smtps":
		r.implicit = true
		if port == "" {
			port = "465"
		}
	default:
		return relay{}, bad
	}
	if r.port, err = strconv.Atoi(port); err != nil {
		return relay{}, bad
	}
	switch {
	case u.RawQuery == "":
		return r, nil
	case u.RawQuery == "tls=none" && !r.implicit && loopbackName(r.host):
		r.plain = true
		return r, nil
	}
	return relay{}, bad
}

func loopbackName(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

func (s SMTP) tls(r relay) *tls.Config {
	return &tls.Config{ServerName: r.host, RootCAs: s.roots, MinVersion: tls.VersionTLS12}
}

func (s SMTP) client(r relay, domain string, timeout time.Duration, dial mail.DialContextFunc) (*mail.Client, error) {
	opts := []mail.Option{
		mail.WithPort(r.port), mail.WithTimeout(timeout), mail.WithHELO(domain), mail.WithTLSConfig(s.tls(r)),
		mail.WithTLSPolicy(mail.TLSMandatory), mail.WithDialContextFunc(dial),
	}
	switch {
	case r.implicit:
		opts = append(opts, mail.WithSSL())
	case r.plain:
		opts = append(opts, mail.WithTLSPolicy(mail.NoTLS))
	}
	if s.Username != "" {
		// PLAIN and LOGIN refuse to run without TLS, except to loopback.
		opts = append(opts, mail.WithUsername(s.Username), mail.WithPassword(s.Password), mail.WithOpportunisticSMTPAuth(
			mail.SMTPAuthSCRAMSHA256, mail.SMTPAuthSCRAMSHA1, mail.SMTPAuthPlain, mail.SMTPAuthLogin))
	}
	return mail.NewClient(r.host, opts...)
}

func (s SMTP) dial(ctx context.Context, network, addr string, r relay) (net.Conn, error) {
	c, err := s.Guard.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if r.plain {
		// "localhost" is only a name; without TLS the address counts.
		if a, ok := c.RemoteAddr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
			_ = c.Close()
			return nil, errors.New("tls=none reached an address that is not loopback")
		}
	}
	if !r.implicit {
		return c, nil
	}
	t := tls.Client(c, s.tls(r))
	if err := t.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return t, nil
}

// compose makes the e-mail. It also gives the sender's domain.
func (s SMTP) compose(m Message) (*mail.Msg, string, error) {
	from, err := netmail.ParseAddress(s.From)
	if err != nil {
		return nil, "", misconfigured("the mail channel's sender must be an address such as Holdpoint <holdpoint@acme.example>")
	}
	to, err := netmail.ParseAddress(m.To)
	if err != nil {
		return nil, "", permanent("the recipient's e-mail address cannot be read; correct the person's address")
	}
	if !goodID(m.ID) {
		return nil, "", permanent("the message id cannot be used in an e-mail; use a UUID")
	}
	at := m.Timestamp
	if at.IsZero() {
		at = time.Now()
	}
	domain := from.Address[strings.LastIndexByte(from.Address, '@')+1:]
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent())
	msg.FromMailAddress(from)
	msg.ToMailAddress(&netmail.Address{Address: to.Address})
	msg.Subject(oneLine(m.Subject))
	msg.SetDateWithValue(at)
	msg.SetMessageIDWithValue(m.ID + "@" + domain)
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: no vacation notes, please
	msg.SetBodyString(mail.TypeTextPlain, m.Text)
	return msg, domain, nil
}

// oneLine replaces control characters, so that a header stays one header.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s))
}

func dialError(err error) error {
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &cert):
		return later("the mail server's certificate was not accepted; check its name and issuer")
	case strings.Contains(err.Error(), "STARTTLS"):
		return later("the mail server does not offer STARTTLS; enable it or use smtps://")
	case strings.Contains(err.Error(), "AUTH"):
		return later("the mail server did not accept the login; check the channel's username and password")
	}
	return unreachable("mail server", err)
}

func sendError(err error) error {
	var e *mail.SendError
	if !errors.As(err, &e) || e.ErrorCode() == 0 {
		return later("the connection to the mail server broke before it took the message")
	}
	code := e.ErrorCode()
	aboutMessage := e.Reason == mail.ErrSMTPRcptTo || e.Reason == mail.ErrSMTPData || e.Reason == mail.ErrSMTPDataClose
	if code >= 500 && aboutMessage {
		return permanent("the mail server refused the recipient or the message with code %d", code)
	}
	return later("the mail server answered %d and did not take the message; see its log", code)
}
