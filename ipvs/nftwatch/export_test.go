package nftwatch

// TableOf is tableOf.
var TableOf = tableOf
