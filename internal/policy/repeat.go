package policy

// Repeatable reports whether sending the same request now is proved to be harmless: a valid proof of this connector
// version, inside the proved life of the key, with the same wire hash.
func Repeatable(f EffectFacts) bool { return f.repeatable(f.Now) }
