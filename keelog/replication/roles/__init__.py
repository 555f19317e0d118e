"""Changes of a store's role by hand: promoted, demoted, rewound. No node runs on it then."""
