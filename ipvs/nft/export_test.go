package nft

// Suspect tells whether the next Check lists the table.
func (f *Firewall) Suspect() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notice(0)
	return f.suspect
}

// TableOf is tableOf.
var TableOf = tableOf
