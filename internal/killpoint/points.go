package killpoint

import (
	"strings"
	"unicode"
)

// Verbs are the transactions of the store, each by the name that Name gives it. Around the commit of each lie two points:
// store.VERB.before_commit, where nothing of it stands yet, and store.VERB.committed, where all of it stands and nobody
// knows.
var Verbs = []string{
	"activate_policy",
	"add_events",
	"add_messages",
	"begin_attempts",
	"begin_step",
	"cancel_effect",
	"cancel_run",
	"claim_runs",
	"close_expired_effects",
	"create_key",
	"create_person",
	"create_session",
	"create_tenant",
	"decide",
	"disable_person",
	"end_session",
	"end_work",
	"finish_step",
	"grant_role",
	"hold_connector",
	"hold_draft",
	"hold_effects",
	"lease_effects",
	"lease_look_ups",
	"lease_messages",
	"mint_challenge_token",
	"open_challenge",
	"put_proof",
	"recover_effects",
	"reject_draft",
	"release_connector",
	"renew_lease",
	"replace_run",
	"resolve_effect",
	"resolve_step",
	"revoke_key",
	"revoke_role",
	"schedule_look_up",
	"set_language",
	"set_password",
	"set_switch",
	"settle_attempts",
	"settle_look_up",
	"settle_message",
	"store_policy",
	"sweep_runs",
	"withdraw_approval",
}

// Lines are the points between two durable facts of which at least one is not the store's: what a caller has been
// answered, what a provider or a mail server has accepted, what lies in a file.
var Lines = []string{
	"api.before_answer",          // a state-changing call has done its work; its caller knows nothing
	"app.locked",                 // the lock of a SQLite store is taken, the store is not open yet
	"dispatch.before_attempt",    // an effect is leased, its attempt row is not written
	"dispatch.attempt_committed", // the attempt row stands, no byte has left
	"httpcall.before_first_byte", // connected, no byte of the request has left
	"dispatch.answer_received",   // the provider has answered, the store does not know
	"dispatch.before_look_up",    // a look-up is leased, the provider has not been asked
	"dispatch.look_up_answered",  // the provider has said what it holds, the store does not know
	"dispatch.message_prepared",  // the token of a link is stored, the message has not left
	"dispatch.message_accepted",  // the channel has the message, the store does not know
	"init.files_written",         // policy, schema and secret key lie in their files, there is no store
	"init.before_answer",         // everything is made, the key and the password are not shown
	"store.migrate.statement",    // one statement of the schema has been run in a transaction that is open
	"store.migrate.committed",    // the schema is current
}

// Points are the names of all points.
func Points() []string {
	var all []string
	for _, v := range Verbs {
		all = append(all, "store."+v+".before_commit", "store."+v+".committed")
	}
	return append(all, Lines...)
}

// Name gives a verb the one form that all have in a point: "ClaimRuns" is claim_runs, "lease look-ups" is lease_look_ups.
func Name(verb string) string {
	var b strings.Builder
	for i, r := range verb {
		switch {
		case unicode.IsUpper(r):
			if i > 0 {
				b.WriteByte('_')
			}
			b.WriteRune(unicode.ToLower(r))
		case unicode.IsLetter(r):
			b.WriteRune(r)
		default:
			b.WriteByte('_')
		}
	}
	return b.String()
}
